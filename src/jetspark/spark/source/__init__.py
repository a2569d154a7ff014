"""Reading: from options and positions to ranges, and from ranges to proven rows."""
