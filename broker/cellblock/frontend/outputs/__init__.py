"""Outputs that are too large for a response are kept on disk and read in pages. Start at `kept_outputs`."""
