"""Scripts are checked against what was observed of outputs that no one declared."""

from pathlib import Path
from typing import Any

import pytest

from cellblock.run.policy.asking import Grantee
from cellblock.types.check import compiler
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import until, within

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)

WARM_MS = 20_000
"""The bound of a check: for what takes milliseconds on a quiet machine."""

TASK = '{ name: "Buy milk", due: "2026-12-01" }'

AS_TEXT = ("echo", "JSON.parse(await echo({input}))")
AS_VALUE = ("echo", "(await echo({input}))")
STRUCTURED = ("give", "(await give({input}))")


def script(how: tuple[str, str], use: str, given: str = TASK) -> str:
    """A script that calls the tool and reads from its result what `use` says."""
    function, call = how
    value = call.replace("{input}", given)
    return (
        f'import {{ {function} }} from "@codemode/servers/plain";\n'
        f"const task = {value};\nglobalThis.__codemode_result__ = {use};\n"
    )


def calls(record: Path) -> int:
    return sum(event["event"] == "call" for event in ledger(record))


@pytest.mark.parametrize(
    ("how", "schemas"),
    mostly([(AS_TEXT, {})], [(AS_TEXT, {}), (AS_VALUE, {"unwrap": "json"}), (STRUCTURED, {})]),
    ids=["text", "unwrapped text", "structured content"],
)
async def test_a_member_that_no_result_had_is_refused_before_any_call(
    tmp_path: Path, how: tuple[str, str], schemas: dict[str, Any]
) -> None:
    record = tmp_path / "ledger.jsonl"
    config = settings(
        tmp_path,
        {"plain": plain_server("--ledger", record)},
        typecheck_timeout_ms=WARM_MS,
        schemas=schemas,
    )
    wrong = script(how, "task.title.toUpperCase()")
    async with ready(config) as broker:
        # Nothing is known, and so nothing is refused.
        unknown = await within(broker.run(script(how, "task.title ?? task.name"), typecheck="before"))
        assert succeeded(unknown) == "Buy milk"
        await broker.learnt(30.0)
        # One result refuses nothing.
        once = await within(broker.run(script(how, "String(task.title)"), typecheck="before"))
        assert succeeded(once) == "undefined"
        await broker.learnt(30.0)
        before = calls(record)

        refused = await within(broker.run(wrong, typecheck="before"))
        found = error_of(refused, "TYPE_ERROR")
        assert "'title'" in found.message and "no tool was called" in found.message
        assert "Did you mean `name`?" in (found.hint or "")
        assert f"{how[0]} (2 results)" in (found.hint or "")
        assert calls(record) == before and not refused.tool_trace

        right = await within(broker.run(script(how, "[task.name, task.due]"), typecheck="before"))
        assert succeeded(right) == ["Buy milk", "2026-12-01"]
        guarded = await within(broker.run(script(how, "task.title ?? null"), typecheck="before"))
        assert succeeded(guarded) is None, "who looks before reading is let through, as the hint says"

        # A result with the member, and the same script is right.
        taught = '{ name: "Buy milk", title: "now there", due: "2026-12-01" }'
        await within(broker.run(script(how, "1", taught)))
        await broker.learnt(30.0)
        again = wrong.replace(TASK, taught)
        assert succeeded(await within(broker.run(again, typecheck="before"))) == "NOW THERE"


async def test_a_member_that_came_this_time_is_told_of_no_other_place(tmp_path: Path) -> None:
    config = settings(tmp_path, {"plain": plain_server()}, typecheck_timeout_ms=WARM_MS)
    known = '{ order: { sum: 1 }, buyer: { name: "A" } }'
    async with ready(config) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "1", known)))
        await broker.learnt(30.0)
        for use, given, hint in (
            ("String(task.sum)", known, "`sum` is in `order`: read `task.order.sum`."),
            ("String(task.sum)", '{ sum: 2, order: { sum: 1 }, buyer: { name: "A" } }', None),
            ("String(task.order.name)", known, "It has: sum."),
            ("String(task.order.name)", '{ order: { sum: 1, name: "x" }, buyer: { name: "A" } }', None),
            ("String(task.error)", '{ error: "none" }', None),
        ):
            response = await within(broker.run(script(STRUCTURED, use, given)))
            told = [found.hint or "" for found in response.diagnostics if found.code == "TYPE_ERROR"]
            assert [hint in one for one in told] == [True] * (hint is not None), (use, given, told)


async def test_what_is_forgotten_is_no_longer_checked(tmp_path: Path) -> None:
    from cellblock.base.store import opened_file
    from cellblock.types.learning.store import TABLES, Observations

    config = settings(tmp_path, {"plain": plain_server()}, typecheck_timeout_ms=WARM_MS)
    wrong = script(STRUCTURED, "String(task.title)")
    async with ready(config) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "task.name")))
        await broker.learnt(30.0)
        error_of(await within(broker.run(wrong, typecheck="before")), "TYPE_ERROR")
        store = Observations(opened_file(tmp_path / TABLES.file, TABLES))
        assert store.clear("plain") == 1
        store.close()
        (server,) = broker.catalog.servers.values()
        give = server.by_export["give"]
        await until(lambda: broker.output_of(server, give) is None, "the running broker forgets, too")
        assert succeeded(await within(broker.run(wrong, typecheck="before"))) == "undefined"


async def test_an_error_names_what_its_principal_alone_has_shown_to_nobody_else(tmp_path: Path) -> None:
    config = settings(tmp_path, {"plain": plain_server()}, typecheck_timeout_ms=WARM_MS)
    wrong = script(STRUCTURED, "String(task.alic)", "{}")
    one, other = Grantee("oauth:a"), Grantee("oauth:b")
    async with ready(config) as broker:
        for _ in range(2):
            await within(broker.run(script(STRUCTURED, "1", '{ ["ali" + "ce"]: "x" }'), grantee=one))
            await broker.learnt(30.0)
        for _ in range(2):
            # The same script: what is kept of the one's check is not told to the other.
            refused = await within(broker.run(wrong, grantee=one, typecheck="before"))
            assert "alice" in (error_of(refused, "TYPE_ERROR").hint or "")
            others = await within(broker.run(wrong, grantee=other, typecheck="before"))
            assert succeeded(others) == "undefined" and "alice" not in str(others)
