"""The composition root: configuration file, command line, embedding API."""
