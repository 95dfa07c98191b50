"""Python tools are functions of an embedder or a module, offered to scripts as the MCP server `local`.

In: functions marked with `tool`. Out: definitions with JSON Schemas from their signatures, and calls' results. Start
at `python_tools`, then `signatures`.
"""
