"""Front-ends speak MCP with clients, over standard input and output or HTTP, and start runs for them.

In: requests of clients; of the broker `service.RunService`, of the configuration `service.FrontConfig`. Out:
responses, notifications, kept outputs. It may import every room below it, and of the worker host
`cellblock_worker.confinement` (constants) and `cellblock_worker.base`. Start at `mcp.mcp_server`; `stdio` and `http`
carry its messages.
"""
