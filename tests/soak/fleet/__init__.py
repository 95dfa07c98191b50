"""The soak of a fleet: brokers, hosts, the balancer, PostgreSQL and links die, stop and slow down under clients of both
generations of the protocol, and the books of all runs must balance. See `scripts/soak --fleet`. A broker alone, on its
own files, is killed again and again in the same way (`--alone`).

    campaign    the whole of it: settings, load, end, what is judged then, and what is done to the parts
    clients     who runs, parks, approves, and who tries what is another's
"""
