"""Keeps the validators and examples of the schemas used last, each made once and only when needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cellblock.base.kept import KeptByIdentity
from cellblock.tools.schemas.example import minimal_example
from cellblock.tools.schemas.validation import InputValidator


class CheckedSchema:
    """Holds one schema with its validator and its example."""

    def __init__(self, schema: Mapping[str, Any] | bool | None, label: str) -> None:
        self.schema = schema
        self.validator = InputValidator(schema, label=label)

    @cached_property
    def example(self) -> Any | None:
        """Gives a minimal payload that fits the schema, or None."""
        return minimal_example(self.schema, self.validator)


class ValidatorCache(KeptByIdentity["Mapping[str, Any] | bool | None", CheckedSchema]):
    """Keeps what was made for the schemas used last, by the identity of the schema object."""

    def __init__(self, maximum: int = 1_000) -> None:
        super().__init__(CheckedSchema, maximum)

    def get(self, schema: Mapping[str, Any] | bool | None, *, label: str = "a tool") -> CheckedSchema:
        """Gives what belongs to this very schema object; `label` names it in the log."""
        return self.get_or_make(schema, label)
