"""The data exchanged with the server: configs, infos, publish acks, advisories; and their validation."""
