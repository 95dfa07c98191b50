"""Servers that are odd in one way: what they do otherwise is not lost, and what is odd is told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.types.typescript.modules import declare_server
from support.entries import SERVERS, plain_server, settings
from support.responses import succeeded
from support.waits import until, within

COMMAND = [sys.executable, "-I", str(SERVERS / "odd_server.py")]
HELLO = """
    import * as odd from "@codemode/servers/odd";
    const out = [];
    for (let k = 0; k < TIMES; k++) {
        await new Promise((done) => setTimeout(done, 300));
        out.push(await odd.hello({}).catch(({ name, message, certainty, ...rest }) => ({ name, message, certainty })));
    }
    globalThis.__codemode_result__ = out;
"""


@contextmanager
def served(way: str, **entry: Any) -> Generator[dict[str, Any]]:
    """The entry of a server over HTTP; killed at the end."""
    with subprocess.Popen([*COMMAND, way, "http"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield {"url": f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp", **entry}
        finally:
            process.kill()


def started(way: str) -> dict[str, Any]:
    return {"command": COMMAND[0], "args": [*COMMAND[1:], way]}


async def said_by(tmp_path: Path, entry: dict[str, Any], times: int = 1, **upstream: Any) -> list[Any]:
    """What some calls of one script give."""
    async with Broker(settings(tmp_path, {"odd": entry}, upstream=upstream)) as broker:
        await broker.settled()
        return succeeded(await within(broker.run(HELLO.replace("TIMES", str(times)))))


async def test_a_server_that_ends_after_each_answer_is_started_again_for_the_next(tmp_path: Path) -> None:
    assert await said_by(tmp_path, started("answers"), 3) == ["hi"] * 3


async def test_a_server_that_ends_before_it_is_greeted_is_greeted_at_once_at_its_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await said_by(tmp_path, started("closes")) == ["hi"]
    assert "it ended by itself" not in caplog.text


async def test_a_server_that_sleeps_at_what_is_not_initialize_is_greeted_meanwhile(tmp_path: Path) -> None:
    assert await said_by(tmp_path, started("sleepy"), connect_timeout_ms=2_900) == ["hi"]


async def test_the_last_words_of_a_server_that_dies_reach_the_script(tmp_path: Path) -> None:
    (failed,) = await said_by(tmp_path, started("crash"))
    assert (failed["name"], failed["certainty"]) == ("ToolCallError", "may_have_run")
    assert "the licence has expired" in failed["message"]


async def test_progress_extends_the_time_of_a_call(tmp_path: Path) -> None:
    assert await said_by(tmp_path, started("busy"), call_timeout_ms=1_000) == ["hi"]


async def test_what_is_no_json_becomes_null_and_is_told(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path, {"odd": started("nan")})) as broker:
        await broker.settled()
        response = await within(broker.run(HELLO.replace("TIMES", "2")))
    assert succeeded(response) == [{"a": None, "b": 1.5}] * 2
    (told,) = response.diagnostics
    assert told.code == "TOOL_RESULT_NOTE"
    assert "The result of hello of odd: NaN is no JSON: null stands in its place." in told.message


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_long_id_is_passed_on_with_its_digits_or_refused(tmp_path: Path, as_text: bool) -> None:
    answer = '{"id": 1234567890123456789, "count": 2}'
    content = [{"type": "text", "text": answer}]
    result = json.dumps({"content": content}) if as_text else f'{{"structuredContent": {answer}}}'
    code = f"""
        import {{ give, raw }} from "@codemode/servers/plain";
        const {{ id, count }} = await raw({{ text: {json.dumps(f'"result": {result}')} }});
        console.log({{ id, count }});
        if (typeof id === "bigint" && id === 1n) await give({{ id: -id }});
        globalThis.__codemode_result__ = [id, (await give({{ id }})).id, count + 1];
    """
    given, other = {"plain": "bigint", "*": "json"}, {"plain": "json"}
    servers = {"plain": plain_server()}
    async with Broker(settings(tmp_path / "a", servers, schemas={"unwrap": given})) as broker:
        await broker.settled()
        response = await within(broker.run(code))
        assert succeeded(response) == [1234567890123456789, 1234567890123456789, 3]
        assert response.diagnostics == []
        assert response.logs[0].message == '{"count":2,"id":1234567890123456789}'
    async with Broker(settings(tmp_path / "b", servers, schemas={"unwrap": other})) as broker:
        await broker.settled()
        response = await within(broker.run(code))
    assert [(call.tool_name, call.ok) for call in response.tool_trace] == [("raw", True)]
    (failed,) = [found for found in response.diagnostics if found.severity == "error"]
    assert failed.error_class == "SchemaValidationError"
    assert "at /id, 1234567890123456800 is beyond 2^53" in failed.message
    (note,) = [found for found in response.diagnostics if found.code == "TOOL_RESULT_NOTE"]
    assert "at /id is beyond 2^53, and rounded as a number: it is 1234567890123456789. With" in note.message
    assert '`schemas.unwrap` at {"plain": "bigint"} scripts get it as a BigInt.' in note.message


async def test_what_a_server_says_at_the_first_start_is_told_while_it_starts_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    starts = (
        f"test -e {seen} && exec sleep 60; touch {seen}; read line; echo The licence is missing >&2; exit 1"
    )
    async with Broker(settings(tmp_path, {"odd": {"command": "sh", "args": ["-c", starts]}})) as broker:
        await until(
            lambda: "The licence is missing" in broker.catalog.unavailable.get("odd", ""), "it is not told"
        )
        assert broker.catalog.unavailable["odd"].startswith("still connecting, for the second time: ")


async def test_letters_of_all_scripts_stay_in_the_names_of_tools(tmp_path: Path) -> None:
    code = 'import { créer_é as made } from "@codemode/servers/server"; globalThis.__codemode_result__ = await made();'
    async with Broker(settings(tmp_path, {"日本": started("letters")})) as broker:
        await broker.settled()
        assert succeeded(await within(broker.run(code))) == "hi"
        assert "function créer_é(" in declare_server(broker.catalog.servers["server"], reading=False)


async def test_a_page_that_is_refused_keeps_those_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await said_by(tmp_path, started("pages")) == ["hi"]
    assert "Its tool list ends at page 2, which it refused: no such cursor." in caplog.text


async def test_an_odd_introduction_is_told_where_warnings_of_servers_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(settings(tmp_path, {"odd": started("mute")})) as broker:
        await broker.settled()
        assert succeeded(await within(broker.run(HELLO.replace("TIMES", "1")))) == ["hi"]
        odd = broker.catalog.servers["odd"]
    assert (odd.version, odd.description) == ("1", "Be\nbrief.")
    assert odd.warnings == (
        "Of its capabilities some are no objects: tools, prompts.",
        "It does not say its name and version as texts.",
        "Its instructions are no text.",
    )
    for warning in odd.warnings:
        assert caplog.text.count(warning) == 1


async def test_a_tool_that_must_be_called_as_a_task_is_called_as_one(tmp_path: Path) -> None:
    # The call, three looks, and the result.
    assert await said_by(tmp_path, started("tasks")) == ["hi 5"]


async def test_of_a_task_that_its_server_forgets_it_is_not_known_whether_it_ran(tmp_path: Path) -> None:
    (failed,) = await said_by(tmp_path, started("lost"))
    assert failed["certainty"] == "may_have_run"
    assert "its task is lost: no such task" in failed["message"]


async def test_a_task_that_is_given_up_is_cancelled(tmp_path: Path) -> None:
    code = """
        import { hello, lists } from "@codemode/servers/odd";
        const failed = await hello({}).catch((error) => [error.name, error.certainty]);
        let looks = [];
        while (!looks.includes("tasks/cancel")) looks = await lists({});
        globalThis.__codemode_result__ = failed;
    """
    async with Broker(
        settings(tmp_path, {"odd": started("stuck")}, upstream={"call_timeout_ms": 1_000})
    ) as broker:
        await broker.settled()
        assert succeeded(await within(broker.run(code))) == ["ToolCallError", "may_have_run"]


async def test_changes_that_are_announced_in_a_loop_cost_a_list_a_second(tmp_path: Path) -> None:
    code = """
        import { lists } from "@codemode/servers/odd";
        globalThis.__codemode_result__ = await lists({});
    """
    async with Broker(settings(tmp_path, {"odd": started("loop")})) as broker:
        await broker.settled()
        lists = first = succeeded(await within(broker.run(code)))
        began = time.monotonic()
        for _ in range(3):
            lists = succeeded(await within(broker.run(code)))
        assert lists - first <= time.monotonic() - began + 2


async def test_changed_tools_that_are_not_listed_in_time_fail_the_runs_that_import_them(
    tmp_path: Path,
) -> None:
    call = HELLO.replace("TIMES", "1")
    async with Broker(settings(tmp_path, {"odd": started("changed")})) as broker:
        await broker.settled()
        assert succeeded(await within(broker.run(call))) == ["hi"]
        began = time.monotonic()
        other, failed = await asyncio.gather(
            broker.run('globalThis.__codemode_result__ = "odd";'), within(broker.run(call))
        )
        assert succeeded(other) == "odd" and other.usage.wall_ms < 4_000
        assert time.monotonic() - began > 4
        (error,) = [one for one in failed.diagnostics if one.severity == "error"]
        assert (error.code, error.error_class) == ("IMPORT_FAILURE", "ServerNotFoundError")
        assert "has announced other tools, and has not listed them within 5 s; nothing" in error.message
        assert error.hint == "Do without it, or run the script again in a moment."
        assert succeeded(await within(broker.run(call))) == ["hi"]


async def test_a_redirect_within_the_origin_is_followed(tmp_path: Path) -> None:
    with served("moved", headers={"Authorization": "Bearer key"}) as entry:
        assert await said_by(tmp_path, entry, 2) == ["hi Bearer key"] * 2


async def test_a_redirect_to_another_origin_is_told(tmp_path: Path) -> None:
    with served("elsewhere") as entry:
        async with Broker(settings(tmp_path, {"odd": entry})) as broker:
            await broker.settled()
            why = broker.catalog.unavailable["odd"]
    assert "HTTP 308" in why and "http://127.0.0.2:9/mcp, which is not followed" in why


async def test_a_session_that_is_gone_is_begun_anew_for_the_call(tmp_path: Path) -> None:
    with served("gone") as entry:
        assert await said_by(tmp_path, entry, 3) == ["hi None"] * 3


async def test_a_server_of_the_older_transport_is_found_by_its_405(tmp_path: Path) -> None:
    with served("sse") as entry:
        assert await said_by(tmp_path, entry, 2) == ["hi None"] * 2


async def test_a_page_where_an_answer_belongs_is_quoted(tmp_path: Path) -> None:
    with served("page") as entry:
        (failed,) = await said_by(tmp_path, entry)
    assert "it is text/html: `<html><h1>Log in</h1></html>`" in failed["message"]
