"""Evals give a model the same tasks through several set-ups of the same servers: `bash scripts/evals`."""
