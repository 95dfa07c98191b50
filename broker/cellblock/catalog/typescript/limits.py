"""Bounds the declaration generator: what one hostile tool may cost at most.

Past a budget the declaration gets wider (`unknown` and a warning), never narrower.
"""

from __future__ import annotations

MAX_TOOL_DESCRIPTION = 4_000
"""Characters of a tool's or server's description that reach its doc comment."""

MAX_PROPERTY_DESCRIPTION = 1_000
"""Characters of a property's description that reach its doc comment."""

MAX_DOC_CHARS_PER_TOOL = 40_000
"""Characters of property documentation in one schema; later properties go without comment."""

MAX_DOC_VALUE = 200
"""Characters of one default, example or constraint value in a doc comment."""

MAX_EXAMPLES = 3
"""Examples shown for one property."""

MAX_DEPTH = 32
"""Levels of nested values described; deeper values are `unknown`."""

MAX_NODES = 4_000
"""Schema locations compiled for one schema; later ones are `unknown`."""

MAX_ALTERNATIVES = 48
"""Members of one union that come from combining several anyOf, oneOf, if or dependent keywords."""

MAX_CONJUNCTS = 200
"""Schemas that may apply to one value through allOf and `$ref`; later ones are ignored (wider)."""

MAX_ENUM_MEMBERS = 400
"""Literals in one enum; a longer one is declared as the kinds of its values."""

MAX_LITERAL_CHARS = 512
"""Characters in one string literal type; a longer one is declared as `string`."""

MAX_LITERAL_NODES = 200
"""Values inside one object or array literal of a const or enum."""

MAX_KEY_CHARS = 256
"""Characters in one declared property key; longer ones are left out and their object is left open."""

MAX_TUPLE = 32
"""Positions of one tuple that get a type each."""

MAX_PADDING = 8
"""Positions spelt out only because of minItems or maxItems."""

MAX_TEXT = 200_000
"""Characters of one declared type, aliases included; a longer one is `unknown`."""

MAX_WARNINGS = 20
"""Warnings kept for one schema."""

MAX_INDEXED = 100_000
"""Schema objects searched for `$id` and anchors in one document."""
