"""Bounds the declaration generator: what one hostile tool may cost at most.

Past a budget the declaration gets wider (`unknown` and a warning), never narrower.
"""

from __future__ import annotations

MAX_TOOL_DESCRIPTION = 4_000
"""Bounds the characters of a tool's or server's description that reach its doc comment."""

MAX_PROPERTY_DESCRIPTION = 1_000
"""Bounds the characters of a property's description that reach its doc comment."""

MAX_DOC_CHARS_PER_TOOL = 40_000
"""Bounds the characters of property documentation in one schema; later properties go without comment."""

MAX_DOC_VALUE = 200
"""Bounds the characters of one default, example or constraint value in a doc comment."""

MAX_EXAMPLES = 3
"""Bounds the examples shown for one property."""

MAX_DEPTH = 32
"""Bounds the levels of nested values described; deeper values are `unknown`."""

MAX_NODES = 4_000
"""Bounds the schema locations compiled for one schema; later ones are `unknown`."""

MAX_ALTERNATIVES = 48
"""Bounds the members of one union that come from combining several anyOf, oneOf, if or dependent keywords."""

MAX_CONJUNCTS = 200
"""Bounds the schemas that may apply to one value through allOf and `$ref`; later ones are ignored (wider)."""

MAX_ENUM_MEMBERS = 400
"""Bounds the literals in one enum; a longer one is declared as the kinds of its values."""

MAX_LITERAL_CHARS = 512
"""Bounds the characters in one string literal type; a longer one is declared as `string`."""

MAX_LITERAL_NODES = 200
"""Bounds the values inside one object or array literal of a const or enum."""

MAX_KEY_CHARS = 256
"""Bounds the characters in one declared property key; longer ones are left out and their object is left open."""

MAX_TUPLE = 32
"""Bounds the positions of one tuple that get a type each."""

MAX_PADDING = 8
"""Bounds the positions spelt out only because of minItems or maxItems."""

MAX_TEXT = 200_000
"""Bounds the characters of one declared type, aliases included; a longer one is `unknown`."""

MAX_WARNINGS = 20
"""Bounds the warnings kept for one schema."""

MAX_INDEXED = 100_000
"""Bounds the schema objects searched for `$id` and anchors in one document."""
