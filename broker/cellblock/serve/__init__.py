"""MCP over stdio, a socket and HTTP; outputs; the dashboard."""
