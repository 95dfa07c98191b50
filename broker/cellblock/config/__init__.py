"""Config reads a configuration file into `Settings`, one file for each section.

In: a path or parsed JSON. Out: `settings.Settings`, frozen, or a `ConfigError` with places. It may import `base`, and
of the worker host `cellblock_worker.wire` (the form of endpoints) and `cellblock_worker.base`. Start at `settings`;
`file` reads the text, `secrets` keeps its values out of logs, `client_rules` reads what clients say of their servers in
other files.
"""
