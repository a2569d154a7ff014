"""State machines: events in, actions out. Nothing here does IO or reads a clock; a test enforces this."""
