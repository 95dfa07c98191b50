"""Http is the transport over HTTP: who may enter, sessions, the dashboard's pages.

In: requests. Out: the answers of `mcp` to those that may pass, a bare status to all others. Start at
`server`, whose `_app` lists the middlewares.
"""
