"""The wire is every message between broker, host and worker, its frames, and its sockets.

In: bytes, whoever sent them. Out: messages that fit their definition, or an error. It may import `base`. Start at
`protocol`, then `frames`.
"""
