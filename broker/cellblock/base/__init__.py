"""Base holds what has no opinion about Cellblock: errors, the state directory, text for terminals, private folders.

In and out: plain values. It may import only `cellblock_worker`'s own base. Start at `errors`.
"""
