"""Telemetry tells of runs and servers: audit log, metrics, traces, the dashboard's figures.

In: events of executions and servers. Out: lines, counters, spans. It may import `execution` and what that imports.
Start at `watchers`.
"""
