"""JetStream: contexts, streams, consumers, publishing. Its public names are in :mod:`jetspark`."""
