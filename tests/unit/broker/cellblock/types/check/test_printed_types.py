"""Types as the compiler prints them: what hints read out of them, and that odd ones cost nothing."""

from __future__ import annotations

import time

import pytest

from cellblock.types.check.printed_types import element_of, members_of, nested_place, parameters_of

DECLARED = """declare module "a" {
  export interface Options {
    /** One; of: two. */
    first?: string;
    readonly "second-name": { inner: 1 };
  }
  type Row = { id: string; next?: Row };
  export function go(id: string, options?: Options): Promise<Row>;
}
declare module "b" { type Row = { other: string }; }
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{ a: string; b?: number; }", ["a", "b"]),
        ("{ a: { b: string; }; c: 'x; y: z'; }", ["a", "c"]),
        ("{ [key: string]: unknown; name: string; }", ["name"]),
        ("{ a: 1; } | { b: (x: { c: 1; }) => void; }", ["a", "b"]),
        ("({ a: 1; } | { b: 2; })[]", ["a", "b"]),
        ("{ \"x-y\": 1; 'z'?: 2; }", ["x-y", "z"]),
        ("Options", ["first", "second-name"]),
        ("Row", ["other"]),
        ("Row[]", ["other"]),
        ("Nowhere", []),
        ("string", []),
        ("{", []),
        ("", []),
    ],
)
def test_top_level_members(text: str, names: list[str]) -> None:
    assert list(members_of(text, DECLARED, "b").types) == names


def test_what_the_compiler_leaves_out_is_noticed() -> None:
    members = members_of("{ a: 1; ... 26 more ...; z: { ...; }; }")
    assert (list(members.types), members.cut) == (["a", "z"], True)
    assert not members_of("{ z: { ...; }; }").cut


def test_elements() -> None:
    assert element_of("{ a: 1; }[]") == "{ a: 1; }"
    assert element_of("(string | number)[]") == "string | number"
    assert element_of("string | number[]") is None
    assert element_of("{ a: string[]; }") is None


def test_where_a_member_is() -> None:
    kind = "{ a: { x: 1; }; b: { deep: { y: 1; }[]; x: 1; }; }"
    assert nested_place("deep", kind) == ["b"]
    assert nested_place("y", kind) == ["b", "deep[]"]
    assert nested_place("x", kind) is None
    assert nested_place("a", kind) is None
    assert nested_place("none", "Row", DECLARED, "a") is None
    assert nested_place("id", "{ row: Row; }", DECLARED, "a") == ["row"]


def test_parameters() -> None:
    assert parameters_of("go", DECLARED, "a") == "id: string, options?: Options"
    assert parameters_of("went", DECLARED, "a") is None


def test_hostile_types_are_bounded() -> None:
    around = "".join(
        f"type T{n} = {{ {' '.join(f'm{k}: T{k};' for k in range(300))} }};\n" for n in range(300)
    )
    started = time.process_time()
    assert nested_place("absent", "T0", around) is None
    for text in ("{" * 100_000, "{ a: " * 50_000, "/*" * 50_000, '"' * 50_000, "((" * 50_000, "[]" * 50_000):
        members_of(text)
        nested_place("absent", text)
    assert time.process_time() - started < 4
