"""Trees compares checkouts, each with its own interpreter: `bash scripts/bench trees`.

In: folders of checkouts. Out: a table. `probe` is what runs in each.
"""
