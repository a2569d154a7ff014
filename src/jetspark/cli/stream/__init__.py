"""``jetspark stream``: streams and their messages."""
