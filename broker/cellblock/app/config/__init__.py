"""Config reads a configuration file: its syntax, the formats of other clients, references, and exact positions.

In: a file's text. Out: plain data, or problems with their places; `edit` gives the text back with one entry changed.
Start at `syntax`, then `formats`.
"""
