"""Pins remember the tool definitions that a person approved, and hold back those that changed. Start at `pins`."""
