"""A real compiler for the tests of type checking, and a catalog with one tool of each kind."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.check import compiler
from cellblock.types.check.checker import Checked, TypeChecker
from cellblock.types.check.faults import TypeFault

SPECIFIER = "@codemode/servers/tracker"
BOUND_SECONDS = 180.0
"""For what takes milliseconds on a quiet machine."""

Check = Callable[..., Awaitable[Checked]]
Faults = Callable[..., Awaitable[tuple[TypeFault, ...]]]

TASK = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "due": {"type": "string"}, "note": {"type": "string"}},
    "required": ["name", "due"],
    "additionalProperties": False,
}


def object_of(properties: dict[str, Any], *required: str, closed: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {**schema, "additionalProperties": False} if closed else schema


TOOLS = (
    ToolEntry(
        "list_tasks",
        "list_tasks",
        input_schema=object_of({"state": {"enum": ["open", "closed"]}, "limit": {"type": "integer"}}),
        output_schema=object_of({"tasks": {"type": "array", "items": TASK}}, "tasks"),
    ),
    ToolEntry("add", "add", input_schema=object_of({"name": {"type": "string"}}, "name")),
    ToolEntry(
        "find",
        "find",
        input_schema=object_of({}),
        output_schema={
            "anyOf": [
                object_of({"kind": {"const": "a"}, "left": {"type": "string"}}, "kind", "left"),
                object_of({"kind": {"const": "b"}, "right": {"type": "string"}}, "kind", "right"),
            ]
        },
    ),
    ToolEntry("text", "text", input_schema=object_of({}), output_schema={"type": "string"}),
)


def catalog_of(*tools: ToolEntry) -> Catalog:
    """A catalog with the server `tracker`."""
    return Catalog(1, {"tracker": ServerEntry("tracker", "Tracker", "tracker", tools=tools)})


def made_checker() -> TypeChecker:
    """A checker with the compiler that the build has brought."""
    absent = compiler.why_absent()
    if absent is not None:
        pytest.skip(f"{absent}; {compiler.FIX}")
    return TypeChecker()


@pytest.fixture(scope="module")
async def checker() -> AsyncIterator[TypeChecker]:
    """One compiler for all tests that only ask."""
    made = made_checker()
    yield made
    await made.close()


@pytest.fixture
def check(checker: TypeChecker) -> Check:
    """Checks a script against `TOOLS`; an import of all of them as `t` comes before it, on the same line."""

    async def run(code: str, *, typescript: bool = False, **more: Any) -> Checked:
        return await checker.check(
            f'import * as t from "{SPECIFIER}"; {code}',
            typescript=typescript,
            catalog=more.pop("catalog", catalog_of(*TOOLS)),
            imports=[SPECIFIER],
            bound_seconds=more.pop("bound_seconds", BOUND_SECONDS),
            wait_for_start=True,
            **more,
        )

    return run


@pytest.fixture
def faults(check: Check) -> Faults:
    """The faults of a script whose check has come to its end."""

    async def run(code: str, **more: Any) -> tuple[TypeFault, ...]:
        checked = await check(code, **more)
        assert checked.gave_up is None
        return checked.faults

    return run
