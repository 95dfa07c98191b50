"""Replicas are the brokers behind one address: who they are, and what one passes on to another.

In: requests that another broker has to answer. Out: that broker's answers, as they come. It may import what `frontend`
may. Start at `replicas`, which the HTTP front-end's gate asks; `brokers` is the table by which brokers know each other.
"""
