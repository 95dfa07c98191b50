"""Schemas checks values against JSON Schema and explains what does not fit.

In: a schema and a value. Out: nothing, or one fault with its place, a hint and an example. Start at `validation`, then
`explain`.
"""
