"""``jetspark pipe``: a Spark pipeline in one line, or in a TOML file."""
