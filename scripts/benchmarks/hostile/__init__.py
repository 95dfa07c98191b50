"""Hostile has what attackers of a soak do, and the honest neighbours that are measured beside: `bash scripts/soak`."""
