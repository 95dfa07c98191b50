"""Log, audit, metrics and traces, from a run's events."""
