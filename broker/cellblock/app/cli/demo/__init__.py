"""Demo holds `cellblock demo` and the issue tracker that it uses as an upstream MCP server.

In: a state directory. Out: what a real script does, shown step by step. Start at `show`.
"""
