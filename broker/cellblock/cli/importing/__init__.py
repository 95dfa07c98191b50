"""`cellblock import`: servers of other MCP clients on this machine, into one configuration."""
