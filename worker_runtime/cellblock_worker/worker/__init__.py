"""A worker is one Deno process, for one run or, where that is allowed, for runs of one principal: this room boots it,
hears it, keeps its caps, and kills it.

In: runs and their limits. Out: frames of the scripts, and why each ended. It may import `confinement`, `launch`,
`wire` and `base`. Start at `worker`; `life` has the table of its states, and says when a process may have another run.
"""
