"""Durable has runs that are written down: kept at their end, parked while they wait, gone on with after a loss.

In: events and parks of executions, answers of people and clients. Out: runs that go on, their responses, what is told
of them. It may import every room below it. Start at `keeper`, then `kept`; `going_on` and `parked_runs` take runs up
again.
"""
