"""``jetspark demo``: the product in a minute."""
