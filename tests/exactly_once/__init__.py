"""Exactly once, proved by killing: `python tests/exactly_once [SCENARIO ...]`.

A scenario is one way to build a pipeline: plain queries, foreachBatch, Spark Connect, ... Each runs as a
child process that copies the stream IN somewhere while messages are being published. The harness kills it
with SIGKILL again and again: the driver with its JVM and workers, at random moments of its work or of its
start, or only one of its Python processes. At the end each message must have arrived exactly once.

- :mod:`exactly_once.harness`: publishes, starts, kills, counts; it knows nothing of a scenario.
- :mod:`exactly_once.scenario`: what a scenario has to say.
- :mod:`exactly_once.checks`: what scenarios ask of the streams at the end.
- :mod:`exactly_once.jobs`: what the child processes share.
- one module for each scenario, and `<name>_job.py` for its child process.

The seed decides what is done; it is printed. When a kill hits depends on the speed of the machine.
"""
