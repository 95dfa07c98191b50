"""Fleet measures brokers behind a balancer with hosts beside them: `bash scripts/loadtest --fleet`.

In: how many hosts, and which scripts. Out: throughput against hosts, what a run costs a broker, what a host
that idles costs it. Start at `measure`. Whatever is measured with hosts whose workers are no processes
(`synthetic`) is labelled so.
"""
