"""What servers tell of streams and consumers, and the messages that were given up."""
