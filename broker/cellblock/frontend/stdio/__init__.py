"""The stdio transport: reads clients' lines, writes ours, and relays to a daemon. Start at `server`, then `connect`."""
