"""``jetspark top``: streams and consumers as they move."""
