"""The pool admits runs, queues them fairly, and leases each a place on a worker host. Start at `pool`."""
