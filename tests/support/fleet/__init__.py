"""A fleet of real processes on this machine: brokers on one PostgreSQL, a balancer, worker hosts that dial all brokers,
and the links between them. Scripts use it with `PYTHONPATH=tests`, as `scripts/soak` does.

    with Loopback() as network, TemporaryDirectory(prefix="fleet-", dir="/tmp") as folder:
        off = {"typecheck": "off"}
        with Fleet(Path(folder), network, brokers=2, hosts=3, capacity=4, settings=off) as fleet:
            fleet.start()                            # all serve
            async with fleet.behind().client() as client: ...    # through the balancer; `ask()` and `url`, too
            fleet.hosts[0].kill()                    # SIGKILL to it and all below it
            fleet.hosts[0].start(), .wait()          # it is back
            fleet.brokers[1].pause(), .resume(), .stop(), .pid, .said(), .probe("/readyz"), .page("/metrics")
            fleet.balancer.enable(0, is_in=False)    # leaves a broker out
            fleet.database.stop(), .start(), .rows("SELECT …")
            network.cut(place), .cut(place, is_cut=False), .slow(place, bytes_a_second)
            network.delay(place, seconds)
            fleet.ledger()                           # what the upstream servers have recorded

`place` is `fleet.hosts[0].place`, or another part's. Nothing is left at the end of the `with`, whatever happened in it.
Calls block: from a loop, `asyncio.to_thread`. A host of another kind is a `Part` with `network.place(name)`,
`fleet.names_for(place)` and `fleet.host_keys`, and `fleet.add` has it ended with the others.

    fleet       broker, host, balancer (HAProxy) and database, and all of it together, with its settings
    network     where parts are: addresses 127.x.y.z; relays between them, cut, slowed, delayed
"""
