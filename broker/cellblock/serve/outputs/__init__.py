"""Outputs keeps results that are too large for a response on disk, and gives them out in pages.

In: a run's response. Out: the response with previews, and pages to the client that made it. Start at `kept_outputs`.
"""
