"""What a check costs, and what is kept of it."""

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from cellblock.base import payload
from cellblock.tools.schemas import validation
from cellblock.tools.schemas.cost import NotCheckable, SchemaCost
from cellblock.tools.schemas.example import ValidatorCache, minimal_example
from cellblock.tools.schemas.validation import InputValidator
from support.nesting import nested

BOUND = 0.2
"""Seconds of processor time: 50 ms is the aim, and a test machine may be several times slower than usual."""

FILE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def below(value: Any) -> dict[str, Any]:
    return {"x": value}


def doubling(levels: int, keyword: str, *, below: bool) -> dict[str, Any]:
    """References that double at each level: 2**levels paths in a few kilobytes."""
    defs: dict[str, Any] = {f"a{levels}": {"type": "string"}}
    for index in range(levels):
        part: dict[str, Any] = {"$ref": f"#/$defs/a{index + 1}"}
        defs[f"a{index}"] = {keyword: [{"properties": {"x": part}} if below else part] * 2}
    return {"$ref": "#/$defs/a0", "$defs": defs}


def deep(levels: int) -> dict[str, Any]:
    return nested(levels, lambda schema: {"properties": {"x": schema}}, {"type": "string"})


def chain(length: int, link: Any = lambda reference: reference) -> dict[str, Any]:
    defs = {f"a{index}": link({"$ref": f"#/$defs/a{index + 1}"}) for index in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{length}": {"type": "string"}}}


def unevaluated(levels: int) -> dict[str, Any]:
    return nested(
        levels, lambda schema: {"unevaluatedProperties": False, "allOf": [schema]}, {"type": "object"}
    )


@functools.cache
def many() -> dict[str, Any]:
    """Properties; not made by each process that collects tests."""
    return {f"p{index}": {"type": "string", "minLength": 1} for index in range(100_000)}


RECURSIVE = {"properties": {"x": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "not": {"const": 1}}
LARGE_INTEGERS = [10**30 + index for index in range(20_000)]
GRAPH = {
    "anyOf": [{"$ref": f"#/$defs/a{index}"} for index in range(1000)],
    "$defs": {
        f"a{index}": {"properties": {"x": {"$ref": f"#/$defs/a{index * 7 % 1000}"}}} for index in range(1000)
    },
}

HOSTILE: dict[str, Callable[[], tuple[Any, Any]]] = {
    "doubling in place 24": lambda: (doubling(24, "allOf", below=False), 1),
    "doubling in place 40": lambda: (doubling(40, "oneOf", below=False), 1),
    "doubling below 40": lambda: (doubling(40, "anyOf", below=True), nested(40, below)),
    "doubling below 12": lambda: (doubling(12, "anyOf", below=True), nested(12, below)),
    "recursive alternatives, 100 deep": lambda: (RECURSIVE, nested(100, below)),
    "recursive alternatives, 14 deep": lambda: (RECURSIVE, nested(14, below)),
    "recursive alternatives, 9 deep": lambda: (RECURSIVE, nested(9, below)),
    "10,000 deep": lambda: (deep(10_000), {}),
    "80 deep": lambda: (deep(80), nested(80, below)),
    "chain of 5,000 references": lambda: (chain(5_000), 1),
    "chain of 1,000 below": lambda: (
        chain(1_000, lambda link: {"properties": {"x": link}}),
        nested(120, below),
    ),
    "chain with alternatives": lambda: (chain(500, lambda link: {"allOf": [{"oneOf": [link]}]}), 1),
    "100,000 properties": lambda: ({"properties": many()}, {"p1": 1}),
    "3,000 properties": lambda: ({"properties": dict(list(many().items())[:3_000])}, {"p1": 1}),
    "100,000 required": lambda: ({"required": list(many())}, {}),
    "9,000 required": lambda: ({"required": list(many())[:9_000]}, {}),
    "9,000 required of many": lambda: ({"items": {"required": list(many())[:9_000]}}, [{}] * 150),
    "nested quantifiers": lambda: ({"pattern": "^(a+)+$"}, "a" * 50 + "!"),
    "nested quantifiers, long text": lambda: ({"pattern": "^(a|a)*$"}, "a" * 500_000 + "!"),
    "lookahead": lambda: ({"pattern": "(?=a)(a+)+$"}, "a" * 100_000 + "!"),
    "back-reference": lambda: ({"pattern": r"(a+)+\1$"}, "a" * 100_000 + "!"),
    "long pattern, long text": lambda: ({"pattern": "a" * 900 + "c"}, "a" * 1_000_000),
    "counted repeats": lambda: ({"pattern": "((a{100}){100}){100}"}, "a" * 1_000_000),
    "many patterns": lambda: ({"allOf": [{"pattern": f"^[^x]{{1,{300 + n}}}y"} for n in range(200)]}, "a"),
    "many pattern properties": lambda: (
        {"patternProperties": {f"^x{n}.*y": False for n in range(30)}},
        dict.fromkeys(many(), 1),
    ),
    "unique large integers": lambda: ({"uniqueItems": True}, LARGE_INTEGERS),
    "few unique large integers": lambda: ({"uniqueItems": True}, LARGE_INTEGERS[:170]),
    "many small unique arrays": lambda: ({"items": {"uniqueItems": True}}, [LARGE_INTEGERS[:100]] * 200),
    "large enum of objects": lambda: (
        {"items": {"enum": [{"a": n} for n in range(4_000)]}},
        [{"a": -1}] * 200,
    ),
    "many alternatives, many items": lambda: (
        {"items": {"anyOf": [{"required": [str(n)]} for n in range(900)]}},
        [{}] * 1000,
    ),
    "alternatives over a large array": lambda: (
        {"anyOf": [{"items": {"type": "integer"}}, {"type": "null"}]},
        ["a"] * 190_000,
    ),
    "a million items": lambda: ({"items": {"type": "integer"}}, ["a"] * 1_000_000),
    "10 MB text": lambda: (
        {"required": [str(n) for n in range(50)], "anyOf": [{"minLength": 1}]},
        {"x": "y" * 10_000_000},
    ),
    "unevaluated 30": lambda: (unevaluated(30), {"a": 1}),
    "unevaluated 9": lambda: (unevaluated(9), {"a": 1}),
    "large graph": lambda: (GRAPH, nested(100, below)),
    "itself": lambda: ({"$ref": "#"}, 1),
    "each other": lambda: (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        1,
    ),
    "not itself": lambda: ({"not": {"$ref": "#"}}, 1),
    "long minimum example": lambda: ({"minItems": 10**9, "type": "array"}, []),
    "minimum length": lambda: ({"minLength": 10**12, "type": "string"}, ""),
    "value nested 5,000 deep": lambda: ({"properties": {"x": {"$ref": "#"}}}, nested(5_000, below)),
}


def size_of(value: Any) -> int | None:
    try:
        return len(payload.encode(value))
    except payload.PayloadError:
        return None


@pytest.fixture
def uncollected() -> Iterator[None]:
    """A collection goes through what all other tests hold, too."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_judged_or_let_through_in_bounded_time(name: str) -> None:
    schema, value = HOSTILE[name]()
    size = size_of(value)
    validator = InputValidator(schema)
    took: dict[str, float] = {}
    said: dict[str, Any] = {}
    for step, work in {
        "compile": lambda: validator.is_checking,
        "check": lambda: validator.check(value),
        "check again": lambda: validator.check(value),
        "example": lambda: minimal_example(schema, validator),
        # Nothing so deep that it has no size is asked about.
        "take at once": lambda: size is not None and validator.takes_at_once(value, size),
    }.items():
        started = time.thread_time()
        said[step] = work()
        took[step] = time.thread_time() - started
    assert max(took.values()) < BOUND, took
    assert not said["take at once"] or (said["compile"] and validator.judge(value) is None)


@pytest.mark.parametrize(
    ("schema", "value", "taken"),
    [
        (FILE, {"path": "a"}, True),
        (FILE, {"path": 1}, False),
        ({"type": "object"}, {"rows": [{"a": "x" * 40}] * 2_000}, True),
        ({"type": "object", "properties": {"below": {"$ref": "#"}}}, {}, False),
        ({"uniqueItems": True}, [1], False),
        (True, {}, False),
        (None, {}, False),
    ],
)
def test_most_data_is_taken_by_the_size_of_its_json(schema: Any, value: Any, taken: bool) -> None:
    assert InputValidator(schema).takes_at_once(value, len(payload.encode(value))) == taken


@pytest.mark.parametrize(
    "name",
    [
        "recursive alternatives, 9 deep",
        "80 deep",
        "3,000 properties",
        "9,000 required",
        "nested quantifiers",
        "few unique large integers",
        "alternatives over a large array",
        "10 MB text",
        "unevaluated 9",
        "minimum length",
    ],
)
def test_what_is_merely_large_is_still_judged(name: str) -> None:
    schema, value = HOSTILE[name]()
    assert (InputValidator(schema).check(value) is None) == (name == "few unique large integers")


def test_a_pattern_that_cannot_be_bounded_leaves_the_rest_checked() -> None:
    validator = InputValidator(
        {"properties": {"a": {"type": "string", "pattern": "(?=x)y"}, "pattern": {"type": "string"}}}
    )
    assert [validator.check(value) is None for value in ({"a": "anything"}, {"a": 5}, {"pattern": 5})] == [
        True,
        False,
        False,
    ]


def test_a_text_that_is_too_long_for_its_pattern_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    validator = InputValidator(
        {"properties": {"body": {"type": "string"}, "day": {"pattern": r"^\d{4}-(0\d|1[0-2])-\d\d$"}}},
        label="notes.write",
    )
    assert validator.check({"body": "x", "day": "today"}) is not None
    body = "x" * 10_000_000
    for _ in range(2):
        assert validator.check({"body": body, "day": "today"}) is None
    assert len(caplog.records) == 1
    with pytest.raises(NotCheckable):
        validator.judge({"body": body, "day": "today"})


@pytest.mark.parametrize("levels", [1, 4, 8])
def test_the_bound_counts_every_path_and_no_value_costs_more(levels: int) -> None:
    """The bound must not be under the visits of a plain evaluator that remembers nothing."""
    cost = SchemaCost(doubling(levels, "allOf", below=True))
    assert all(cost.at(depth).steps >= 2**depth for depth in range(levels + 1))
    assert cost.at(levels + 1).steps == 0


def test_a_property_costs_what_the_dearest_property_costs() -> None:
    cost = SchemaCost({"properties": {name: {"type": "string", "maxLength": 5} for name in "abcdefgh"}})
    assert cost.at(1) == SchemaCost({"properties": {"a": {"type": "string", "maxLength": 5}}}).at(1)


@pytest.mark.parametrize("depth", [0, 3, 1000])
def test_a_recursive_schema_has_a_bound_at_every_depth(depth: int) -> None:
    cost = SchemaCost({"properties": {"child": {"$ref": "#"}}, "required": ["child"]})
    assert 0 < cost.at(depth).steps < 20


def test_a_bound_that_takes_too_long_to_know_is_refused() -> None:
    with pytest.raises(NotCheckable):
        SchemaCost(GRAPH).at(128)


def test_the_schema_is_compiled_at_the_first_call_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=validation.SchemaCost)
    monkeypatch.setattr(validation, "SchemaCost", made)
    cache = ValidatorCache()
    entry = cache.get_or_make(FILE)
    made.assert_not_called()
    for _ in range(3):
        assert cache.get_or_make(FILE).validator.check({"path": "a"}) is None
    made.assert_called_once()
    assert cache.get_or_make(FILE) is entry
    assert entry.example == {"path": "text"}


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = ValidatorCache(maximum=3)
    schemas: list[dict[str, Any]] = [{"const": index} for index in range(5)]
    first = cache.get_or_make(schemas[0])
    for schema in schemas[1:]:
        cache.get_or_make(schema)
        assert cache.get_or_make(schemas[0]) is first
    assert len(cache._held) == 3  # pyright: ignore[reportPrivateUsage]


def test_a_freed_schema_never_lends_its_validator_to_another() -> None:
    cache = ValidatorCache(maximum=2)
    for index in range(2_000):
        entry = cache.get_or_make({"const": index})
        assert entry.validator.check(index) is None
        assert entry.validator.check(index + 1) is not None
