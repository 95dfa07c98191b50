"""Mcp is the front-end that clients speak with: the one tool, its description, notifications, questions.

In: MCP requests, whoever carried them. Out: runs of the broker, and their responses. Start at `mcp_server`, then
`surface` and `run_tool`; `tasks` shows parked runs to clients that have tasks.
"""
