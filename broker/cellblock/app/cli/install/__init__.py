"""Install puts Cellblock into the configuration of MCP clients, and takes it out again.

In: clients' names. Out: each client's own file, changed in the one entry. Start at `install`.
"""
