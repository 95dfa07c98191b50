"""The wire is every message between broker, host and worker, its frames, and its sockets. Start at `protocol`."""
