"""One run of a script, from its request to its response."""
