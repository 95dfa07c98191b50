"""The MCP front-end: the one tool, its description, sessions' notifications, questions. Start at `mcp_server`."""
