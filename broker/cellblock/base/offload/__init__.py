"""Processes for work that would hold the loop."""
