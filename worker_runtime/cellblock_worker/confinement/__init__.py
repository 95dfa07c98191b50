"""Confinement keeps a worker from what is not its own, by the kernel: bubblewrap, seccomp, cgroups, network, limits.

In: the isolation that is asked for. Out: a command line and limits, or why they cannot be had. It may import `launch`
and `base`. Start at `confinement`; `selftest` proves it at a host's start.
"""
