"""Upstream holds the sessions to MCP servers: it starts or dials them, lists their tools, and calls these.

In: `config.server` entries and calls of runs. Out: tool definitions, results, and errors that say what is certain. It
may import `python_tools`, `learning`, `journal`, `catalog`, `apart`, `config`, `base`, and of the worker host
`cellblock_worker.launch`, `cellblock_worker.wire` (constants) and `cellblock_worker.base`. Start at `registry`, then
`session`.
"""
