"""Auth logs in to HTTP servers with OAuth 2.1, and keeps and renews their tokens.

In: a server's entry, and a browser that a person uses. Out: a token with each request. Start at `bearer`, then
`login`.
"""
