"""The link carries ZeroMQ messages between this broker and its worker hosts. Start at `router`."""
