"""What is made of a run: literals that become parameters, and schemas of the one input and result that it had."""

from typing import Any

import pytest

from cellblock.record.scripts.saving import input_schema, schema_of, with_parameters
from cellblock.record.scripts.script_file import NO_INPUT, BadScript, Header, format_script
from cellblock.tools.schemas.validation import InputValidator


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("f('open', \"open\");", "f(input.p, input.p);"),
        (
            'const { "open": x } = y; f({ "open": "open" });',
            'const { "open": x } = y; f({ "open": input.p });',
        ),
        (
            'class A { "open"() { return "open"; } "open" = 1 }',
            'class A { "open"() { return input.p; } "open" = 1 }',
        ),
        (
            'import a from "open"; export { b } from "open"; c("open");',
            'import a from "open"; export { b } from "open"; c(input.p);',
        ),
        (
            '"use strict"; type A = "open"; const a = "open" as "open";',
            '"use strict"; type A = "open"; const a = input.p as "open";',
        ),
        ('f(`${"open"} open`); g["open"]; // "open"', 'f(`${input.p} open`); g[input.p]; // "open"'),
    ],
)
def test_a_parameter_stands_where_an_expression_can(code: str, made: str) -> None:
    assert with_parameters(code, {"p": "open"}) == made


def test_each_parameter_is_a_literal_of_its_own() -> None:
    assert (
        with_parameters("f(1, true, '1');", {"a": 1, "b": True, "c": "1"}) == "f(input.a, input.b, input.c);"
    )
    for given in ({"a": "x", "b": "x"}, {"a": "y"}, {"a": 1}):
        with pytest.raises(BadScript, match="has no literal"):
            with_parameters('f("x");', given)


SHOWN: list[tuple[Any, Any, Any]] = [
    ({"n": 1, "x": None}, {"n": 1.5, "x": "text", "more": 1}, {"n": "text"}),
    ({"rows": []}, {"rows": [1]}, {"rows": {}}),
    ([{"a": 1}, {"a": "x", "b": True}], [{"b": False}], [{"b": 1}]),
    (None, {"any": "thing"}, ...),
    ("2026-11-02", "no date", 2026),
    ({f"2026-11-{day}": day for day in range(10, 29)}, {"other": "names"}, []),
]


@pytest.mark.parametrize(("shown", "fits", "not_fits"), SHOWN)
def test_a_schema_says_no_more_than_one_value_shows(shown: Any, fits: Any, not_fits: Any) -> None:
    validator = InputValidator(schema_of(shown), strict=True)
    assert validator.check(shown) is None and validator.check(fits) is None
    assert not_fits is ... or validator.check(not_fits) is not None


def test_an_input_has_the_names_that_it_had() -> None:
    validator = InputValidator(input_schema({"since": "x", "limit": None, "a-b": 3}), strict=True)
    assert validator.check({"since": "y", "limit": 5, "a-b": 0.5}) is None
    assert validator.check({"since": "y", "limit": 5}) is not None
    assert validator.check({"since": "y", "limit": 5, "a-b": 3, "c": 1}) is not None
    assert input_schema({}) == NO_INPUT


def test_a_script_has_its_input_unless_it_can_only_be_empty() -> None:
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    script = format_script("one", Header(description="x", input=free), "f(input);")
    assert 'const input = {"a": "b"};' in script.with_input({"a": "b"})
    own = format_script("one", Header(description="x"), "const input = 1;")
    assert own.with_input({}) == own.text


def test_ends_of_lines_of_windows_are_no_hidden_characters() -> None:
    assert format_script("one", Header(description="x"), "f();\r\ng();\r\n").code == "f();\ng();\n"
