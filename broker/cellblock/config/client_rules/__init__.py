"""Client_rules reads what an MCP client says of its servers' tools outside of a server's entry: settings, permissions.

In: a client, one of its servers, the folder that is worked in. Out: rules, and the entry with our keys for them, or why
that is not possible. It may import `file` beside it, and no model of the settings. Start at `concerning`; `rules` has
what a rule is.
"""
