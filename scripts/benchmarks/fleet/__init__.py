"""Fleet measures brokers behind a balancer with hosts beside them: `bash scripts/loadtest --fleet`.

In: how many hosts, and which scripts. Out: throughput against hosts, what a run costs a broker, what hosts, connections
and runs that wait take of it. Start at `measure`.
"""
