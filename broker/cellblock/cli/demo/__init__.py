"""Demo holds `cellblock demo` and the issue tracker that it uses as an upstream MCP server. Start at `show`."""
