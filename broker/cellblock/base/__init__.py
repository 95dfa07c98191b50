"""Base holds what all rooms use: errors, settings, secrets, stores, tasks, text for terminals, private folders.

In and out: plain values. Start at `errors`.
"""
