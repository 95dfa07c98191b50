"""Ray runs worker hosts on the nodes of its cluster, each in an actor, as many as brokers need.

In: a `Plan`, and each second how many runs a broker has. Out: processes `python -m cellblock_worker --connect …`, which
dial the brokers by themselves. Nothing imports Ray but `__main__`, which a broker starts as a process of its own, and
the actors, in `fleet`. Start there.
"""
