"""Base holds what has no opinion about Cellblock: errors, the state directory, text for terminals, private folders.

In and out: plain values. It may import no other room, and of the worker host `cellblock_worker.base`; `state_dir`
asks `cellblock_worker.host` for the names of files that a Deno directory may hold. Start at `errors`.
"""
