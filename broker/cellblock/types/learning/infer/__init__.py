"""Infer makes shapes of JSON values: read from samples, merged over them, and shown as JSON Schema 2020-12.

In: values. Out: shapes, their JSON Schema, and what changed. Start at `shape`, then `observe`.

The rule of the house: every value that a shape was made from fits the schema made from the shape, and all that it was
merged into. What is not kept (a name, a depth, the values past a budget) leaves the schema wider, never wrong. Only
`refreshed` takes something away: what newer samples do not show.
No value is kept; only names of properties, kinds, formats, and the short tags that tell the members of a union apart.
"""

from __future__ import annotations

from cellblock.types.learning.infer.changes import changes
from cellblock.types.learning.infer.merge import bounded, join, refreshed
from cellblock.types.learning.infer.observe import shape_of
from cellblock.types.learning.infer.render import to_schema
from cellblock.types.learning.infer.shape import ANYTHING, NOTHING, Shape

__all__ = [
    "ANYTHING",
    "NOTHING",
    "Shape",
    "bounded",
    "changes",
    "join",
    "refreshed",
    "shape_of",
    "to_schema",
]
