"""Writing: from rows to acked messages."""
