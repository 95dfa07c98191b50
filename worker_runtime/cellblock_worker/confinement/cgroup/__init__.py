"""Cgroups cap the memory and tasks of a host and of each worker (cgroups(7), v1 and v2).

In: caps in bytes and tasks. Out: a group that a process can be born in, and what was used in it. Start at `cgroup`.
"""
