"""Scheduling decides which run gets the next worker, how many stay warm, and which cores and priority each has.

In: waiting runs and figures of use. Out: an order. It may import `wire` and `base`. Start at `turns`.
"""
