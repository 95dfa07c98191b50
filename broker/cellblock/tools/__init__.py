"""Servers and Python tools: catalog, sessions, validation of inputs."""
