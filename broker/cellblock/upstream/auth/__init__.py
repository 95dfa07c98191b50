"""Auth logs in to HTTP servers with OAuth 2.1, and keeps and renews their tokens. Start at `bearer`, then `login`."""
