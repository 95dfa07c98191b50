"""Telemetry tells of runs and servers: log, audit log, metrics, traces, the dashboard's figures.

In: events of executions, and the state of a broker's parts. Out: lines, counters, spans, plain data. It may import
every room below it, and `cellblock_worker.base`. Start at `watchers`, then `view`.
"""
