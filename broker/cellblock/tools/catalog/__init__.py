"""The catalog holds every connected server's tools as scripts see them, by their names.

In: tool definitions and schemas. Out: modules. Start at `model`.
"""
