"""Keeps the validators and examples of the schemas used last, each made once and only when needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cellblock.schemas.example import minimal_example
from cellblock.schemas.validation import InputValidator


class CheckedSchema:
    """Holds one schema with its validator and its example."""

    def __init__(self, schema: Mapping[str, Any] | bool | None, label: str) -> None:
        self.schema = schema
        self.validator = InputValidator(schema, label=label)

    @cached_property
    def example(self) -> Any | None:
        """Gives a minimal payload that fits the schema, or None."""
        return minimal_example(self.schema, self.validator)


class ValidatorCache:
    """Keeps what was made for a schema, by the identity of the schema object.

    Args:
        maximum: Schemas kept; the one unused for longest goes first.
    """

    def __init__(self, maximum: int = 1_000) -> None:
        self._maximum = maximum
        self._entries: OrderedDict[int, CheckedSchema] = OrderedDict()

    @property
    def size(self) -> int:
        """Schemas kept at the moment."""
        return len(self._entries)

    def get(self, schema: Mapping[str, Any] | bool | None, *, label: str = "a tool") -> CheckedSchema:
        """Gives what belongs to this very schema object; `label` names it in the log."""
        # An entry holds its schema: a freed object's id would be given to another.
        key = id(schema)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = CheckedSchema(schema, label)
            if len(self._entries) > self._maximum:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry
