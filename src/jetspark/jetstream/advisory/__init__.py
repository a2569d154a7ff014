"""The server's advisories about streams and consumers, and dead letters: messages no longer delivered."""
