"""``jetspark bench``: how fast this server, network and client are together."""
