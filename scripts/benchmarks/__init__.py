"""Everything that measures: `bash scripts/bench` lists it, `bash scripts/bench NAME` runs one of it.

A measurement is a module with `main(arguments) -> exit code`; the first line of its docstring is its line in the list.
All build on `harness` (arguments, turns, medians, tables, results).
`load` is `bash scripts/loadtest`, too. The soak (`bash scripts/soak`) is a test, and lies in `tests/soak`.
"""
