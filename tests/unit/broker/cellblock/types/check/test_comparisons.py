"""Comparisons with values that a declared enum does not have, and those that only look so: with the real compiler."""

from collections.abc import Awaitable, Callable

import pytest

from cellblock.tools.catalog.model import ToolEntry
from cellblock.types.check.faults import TypeFault

from .conftest import Check, catalog_of

Faults = Callable[..., Awaitable[tuple[TypeFault, ...]]]

STATUS = {"enum": ["open", "in_progress", "closed"]}
ISSUE = {
    "type": "object",
    "properties": {
        "status": STATUS,
        "maybe": STATUS,
        "mixed": {"enum": ["low", "high", 3, None]},
        "phase": {"enum": [f"{step}_{part}" for step in ("plan", "build", "ship") for part in range(12)]},
        "history": {"type": "array", "items": STATUS},
        "title": {"type": "string"},
    },
    "required": ["status", "mixed", "phase", "history", "title"],
}
# The values of one enum are a part of the other's, and the descriptions name values that the enum does not have.
OTHER = {
    "type": "object",
    "properties": {"state": {"description": 'Once "Closed" | "gone".', "enum": ["OPEN", "CLOSED", "Closed"]}},
    "required": ["state"],
}
TOOLS = (
    ToolEntry(
        "list",
        "list",
        # What is left of the status where it is not open is an enum of its own, here.
        input_schema={
            "type": "object",
            "properties": {"status": STATUS, "other": {"enum": ["in_progress", "closed"]}},
        },
        output_schema={
            "type": "object",
            "properties": {"issues": {"type": "array", "items": ISSUE}},
            "required": ["issues"],
        },
    ),
    ToolEntry("other", "other", input_schema={"type": "object"}, output_schema=OTHER),
)


@pytest.fixture
def faults(check: Check) -> Faults:
    """The faults of a script in which the module is `t`, and `i` an issue; with closed types, and with open ones."""

    async def run(code: str, *, typescript: bool = False) -> tuple[TypeFault, ...]:
        code = f"const {{ issues }} = await t.list({{}}); const i = issues[0]; const o = await t.other({{}}); {code}"
        found: list[tuple[TypeFault, ...]] = []
        for closed in (True, False):
            checked = await check(code, typescript=typescript, catalog=catalog_of(*TOOLS), closed=closed)
            assert checked.gave_up is None
            found.append(checked.faults)
        assert found[0] == found[1]
        return found[0]

    return run


TOLD = [
    (
        "console.log(i.status === 'Closed');",
        "Closed",
        'mean "closed"? Declared: "closed", "in_progress", "open".',
    ),
    ("console.log('Closed' != i.maybe);", "Closed", '"closed"?'),
    ("console.log(i.maybe?.length && i.maybe === 'inProgress');", "inProgress", '"in_progress"?'),
    ("console.log(i.mixed === 'hihg');", "hihg", 'mean "high"? Declared: "high", "low".'),
    ("console.log(i.phase === 'ship_99');", "ship_99", "Declared: "),
    ("console.log(i.phase === 'build-7');", "build-7", '"build_7"?'),
    ("switch (i.phase) { case 'build-7': }", "build-7", '"build_7"?'),
    (
        "switch (i.status) { case 'open': f(); break; case 'Closed': f(); } function f() {}",
        "Closed",
        '"closed"?',
    ),
    ("const wanted = 'Closed'; issues.find((one) => one.status === wanted);", "Closed", '"closed"?'),
    ("const { status } = i; if (status === 'Closed') f(); function f() {}", "Closed", '"closed"?'),
    ("console.log(i.history.includes('Closed'));", "Closed", '"closed"?'),
    ("issues.map((one) => one.status).indexOf('Closed');", "Closed", '"closed"?'),
    # The other one is no name for what was meant.
    ("issues.filter((one) => one.status === 'open' || one.status === 'Closed');", "Closed", '"closed"?'),
    ("console.log(o.state === 'open');", "open", '"OPEN"?'),
    ("console.log(i.status === 'x' ? 'Closed' : 'open');", "x", "Declared:"),
]


@pytest.mark.parametrize(("code", "value", "hint"), TOLD)
async def test_a_value_that_the_enum_does_not_have_is_told(
    faults: Faults, code: str, value: str, hint: str
) -> None:
    (fault,) = await faults(code)
    assert (
        fault.about.absent == value
        and f'"{value}" is in vain' in fault.message
        and hint in (fault.hint or "")
    )


QUIET = [
    "console.log(i.status === 'open', 'closed' !== i.maybe, i.mixed === 3, i.title === 'Closed');",
    # The script's own values.
    "const MODE = 'open'; await t.list({ status: MODE }); if (MODE === 'all') console.log(1);",
    "let s = i.status; if (!s) s = 'none'; if (s === 'none') console.log(1);",
    "if (!i.status) i.status = 'none'; console.log(i.status === 'none');",
    "i.status ??= 'none'; console.log(i.status === 'none');",
    "const s = i.status ?? 'none'; console.log(s === 'none', (i.status || 'none') === 'none');",
    "const s = i.title ? i.status : 'none'; console.log(s === 'none');",
    "const { status = 'none' } = i; console.log(status === 'none');",
    "let status; ({ status = 'none' } = i); console.log(status === 'none');",
    "const rows = issues.map((x) => ({ ...x, status: x.status === 'open' ? 'yes' : 'no' })); rows[0].status === 'yes';",
    # What an `if` around has excluded.
    "if (i.status === 'open') f(); else if (i.status === 'open') f(); function f() {}",
    "issues.map((x) => { if (x.status === 'open') return 1; return x.status === 'open' && x.title ? 2 : 0; });",
    "if (i.status !== 'open') console.log(i.status === 'open');",
    "const { state } = o; if (state === 'OPEN') f(); else if (state === 'OPEN') f(); function f() {}",
    # Several names for the same thing.
    "issues.filter((x) => x.status === 'done' || x.status === 'closed' || x.status === 'finished');",
    "issues.filter((x) => (x.status !== 'Closed') && x.status !== 'closed' && x.title);",
    "switch (i.status) { case 'Closed': case 'closed': case 'done': f(); break; default: } function f() {}",
    "console.log(['done', 'closed'].includes(i.status), ['Closed'].includes(i.status), new Set(['x']).has(i.status));",
    "console.log(String(i.status) === 'Closed', i.status.toLowerCase() === 'Closed', `${i.status}` === 'Closed');",
]


@pytest.mark.parametrize("code", QUIET)
async def test_what_only_looks_so_is_not_told(faults: Faults, code: str) -> None:
    assert await faults(code) == ()


async def test_types_of_a_scripts_own_are_its_own_affair(faults: Faults) -> None:
    code = "const mode: 'open' | 'closed' = f(); if ((mode as string) === 'x' || mode === 'y') f(); function f() {}"
    assert await faults(code, typescript=True) == ()
    assert (
        len(await faults("const one: any = 1; console.log(one, i.status === 'Closed');", typescript=True))
        == 1
    )


@pytest.mark.slow
async def test_a_chain_of_hundreds_of_comparisons_is_judged_in_time(faults: Faults) -> None:
    chain = " || ".join(["i.status === 'Closed'"] * 300)
    assert [fault.about.absent for fault in await faults(f"console.log({chain});")] == ["Closed"]
