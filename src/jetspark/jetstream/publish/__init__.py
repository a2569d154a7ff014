"""Publishing into streams: one by one, pipelined, in atomic batches, by fast ingest."""
