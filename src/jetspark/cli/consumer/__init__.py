"""``jetspark consumer``: consumers, and reading through them."""
