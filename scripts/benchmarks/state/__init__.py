"""State kills brokers that write to a PostgreSQL, and looks for what is lost: `bash scripts/bench state`.

In: how many kills and restarts. Out: how many writes were certain, and what is wrong with them. Start at `__main__`;
`kinds` is the table of what is written and looked for.
"""
