"""Messages of pull consumers: the drivers of the machines in ``flow``, and the objects that users hold."""
