"""Importing takes servers of other MCP clients on this machine into one configuration. Start at `plan`."""
