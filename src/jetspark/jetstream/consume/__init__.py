"""Messages of pull consumers: the drivers of the machines in ``flow``, and what users hold of them."""
