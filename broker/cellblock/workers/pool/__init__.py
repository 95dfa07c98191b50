"""The pool admits runs, queues them fairly, and leases each a place on a worker host.

In: a client that wants a place; hosts that come and go. Out: a lease, or why there is none. Start at `pool`.
"""
