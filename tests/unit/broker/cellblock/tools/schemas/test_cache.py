"""Each schema is compiled once, the number kept is bounded, and no schema gets another's validator."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.tools.schemas import validation
from cellblock.tools.schemas.cache import ValidatorCache

FILE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def test_the_schema_is_compiled_at_the_first_call_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = validation.SchemaCost

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(validation, "SchemaCost", counted)
    cache = ValidatorCache()
    entry = cache.get(FILE)
    assert made == []
    for _ in range(3):
        assert cache.get(FILE).validator.check({"path": "a"}) is None
    assert len(made) == 1
    assert cache.get(FILE) is entry
    assert entry.example == {"path": "text"}


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = ValidatorCache(maximum=3)
    schemas: list[dict[str, Any]] = [{"const": index} for index in range(5)]
    first = cache.get(schemas[0])
    for schema in schemas[1:]:
        cache.get(schema)
        assert cache.get(schemas[0]) is first
    assert cache.size == 3
    assert cache.get(schemas[1]).validator.check(1) is None
    assert cache.get(schemas[1]).validator.check(2) is not None


def test_a_freed_schema_never_lends_its_validator_to_another() -> None:
    cache = ValidatorCache(maximum=2)
    for index in range(2_000):
        entry = cache.get({"const": index})
        assert entry.validator.check(index) is None
        assert entry.validator.check(index + 1) is not None
