"""Script reads an agent's source text: its imports, its shape, and the plain JavaScript that a worker gets.

In: the text of one run. Out: what it imports and the module to send, with every position unmoved. Start at `source`.
"""
