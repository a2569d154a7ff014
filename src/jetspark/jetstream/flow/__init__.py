"""State machines: events in, actions out. Nothing here does IO or looks at a clock; a test sees to it."""
