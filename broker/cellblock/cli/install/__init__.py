"""Puts Cellblock into the configuration of MCP clients: `install`. Start reading in `install.py`."""
