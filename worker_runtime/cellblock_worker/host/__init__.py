"""The host owns this machine's workers: it keeps them warm, leases them, and relays between them and the broker.

In: messages of the broker. Out: messages of workers. It may import `worker`, `confinement`, `launch`, `wire` and
`base`. Start at `host`; `host_process` is how it begins.
"""
