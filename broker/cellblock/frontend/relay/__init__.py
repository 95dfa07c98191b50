"""The relay carries messages between a client's stdio and a running daemon.

In: a client's lines. Out: the daemon's answers, byte for byte. It may import neither the SDK nor pydantic: its
client's first answer would wait for that longer than for all else. Start at `relay`; `channel` is how it speaks with
a daemon.
"""
