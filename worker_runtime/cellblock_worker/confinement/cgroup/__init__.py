"""Cgroups cap the memory and tasks of a host and of each worker (cgroups(7), v1 and v2). Start at `cgroup`."""
