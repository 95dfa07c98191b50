"""The worker host owns the Deno workers of one machine and relays between them and the broker.

In: scripts and limits, by messages of a broker. Out: what the scripts say, and how each run ended. It holds no
credentials and may never import the broker (`cellblock`). Start at `host.host`, then `worker.worker`.
"""
