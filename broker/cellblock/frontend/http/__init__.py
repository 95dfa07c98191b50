"""The HTTP transport: who may enter, sessions, the dashboard's pages. Start at `server`, then `gate`."""
