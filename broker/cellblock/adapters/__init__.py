"""Adapters give a running broker's tool to frameworks of agents, each to one; none is imported by Cellblock itself.

In: a `Broker`. Out: the framework's own kind of tool. They may import `cellblock`, as any program may, and none of
its rooms. Each needs its framework, an extra of the same name. Start at the one that you use.
"""
