"""Hostile measures what runs of honest neighbours take beside hostile workloads: `bash scripts/bench hostile`.

In: the names of workloads. Out: a table, in Markdown with `--out`. Start at `__main__`, then `measure`.
"""
