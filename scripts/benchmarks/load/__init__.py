"""Load measures what the pool costs, beside bare processes and the raw SDK: `bash scripts/loadtest`.

In: the scenarios to run. Out: results as JSON, a page and pictures, and whether targets are met. Start at `__main__`,
then `scenarios`.
"""
