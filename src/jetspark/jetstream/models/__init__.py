"""What is said to the server and what it says: configs, infos, publish acks, advisories; and their checks."""
