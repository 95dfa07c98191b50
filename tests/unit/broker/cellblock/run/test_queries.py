"""Discovery requests of a run: capped in number and size, always answered, and one in a turn of the loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cellblock.run.queries import MAX_QUERIES, MAX_WAITING_BYTES, Queries
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput
from cellblock.types.discovery import Discovery
from support.memory_host import turns


class Answers:
    """Queries with what was answered."""

    def __init__(self, discovery: Discovery | None = None, most: int = 100_000) -> None:
        catalog = Catalog(1, {"a": ServerEntry("a", "A", "a")})
        self.found: dict[int, tuple[bool, Any]] = {}
        self.has_room = True
        self.queries = Queries(
            discovery or Discovery(catalog), self._reply, most, has_room=lambda: self.has_room
        )

    def _reply(self, query_id: int, ok: bool, body: bytes) -> None:
        assert query_id not in self.found
        self.found[query_id] = ok, json.loads(body)


async def test_they_are_answered_in_order_one_in_a_turn() -> None:
    made = Answers()
    for number in range(5):
        made.queries.begin(number, "listServers", b"[]")
    assert list(made.found) == [0], "the first needs to wait for nobody"
    seen = []
    while len(made.found) < 5:
        await asyncio.sleep(0)
        seen.append(len(made.found))
    assert list(made.found) == [0, 1, 2, 3, 4]
    assert all(after - before <= 1 for before, after in zip([1, *seen], seen, strict=False))
    assert made.found[4] == (True, [{"serverId": "a", "serverName": "A"}])


async def test_a_long_list_takes_several_turns_and_is_encoded_once() -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(50)}}
    tools = [ToolEntry(f"tool {n}", f"tool{n}", input_schema=schema) for n in range(400)]
    outputs: dict[str, ToolOutput] = {}
    catalog = Catalog(1, {"a": ServerEntry("a", "A", "a", tools=tuple(tools))})
    discovery = Discovery(catalog, lambda _, tool: outputs.get(tool.tool_name))
    made = Answers(discovery, most=10_000_000)
    full = b'["a",{"detail":"full"}]'

    async def turns_for(query_id: int) -> int:
        made.queries.begin(query_id, "listTools", full)
        count = 0
        while query_id not in made.found:
            count += 1
            await asyncio.sleep(0)
        await turns()
        assert made.found[query_id] == (True, discovery.answer("listTools", json.loads(full)))
        return count

    assert await turns_for(1) > 5
    assert await turns_for(2) == 0
    outputs["tool 7"] = ToolOutput("observed", "Observed.", schema={"type": "string"})
    assert await turns_for(3) == 0, "of one that has changed, that one is encoded"
    assert "outputSchema" in made.found[3][1][7]


async def test_none_is_answered_after_the_end() -> None:
    made = Answers()
    for number in range(5):
        made.queries.begin(number, "listServers", b"[]")
    made.queries.close()
    await turns()
    assert list(made.found) == [0]


async def test_what_waits_is_capped_in_bytes() -> None:
    made = Answers()
    text = json.dumps(["x" * (60 * 1024)]).encode()
    for number in range(1, 11):
        made.queries.begin(number, "describeServer", text)
    # The first was answered at once.
    assert set(made.found) == {1, 10} and MAX_WAITING_BYTES == 8 * 64 * 1024
    ok, error = made.found[10]
    assert not ok and "Too many long" in error["message"]
    await turns(10)
    made.queries.begin(11, "describeServer", text)
    assert len(made.found) == 11 and "Too many" not in made.found[11][1]["message"]


async def test_they_wait_until_their_answers_can_be_sent() -> None:
    made = Answers()
    made.has_room = False
    for number in range(3):
        made.queries.begin(number, "listServers", b"[]")
    await turns()
    assert made.found == {}
    made.has_room = True
    made.queries.go_on()
    made.queries.go_on()
    await turns()
    assert list(made.found) == [0, 1, 2]


async def test_the_number_is_capped() -> None:
    made = Answers()
    for number in range(1, MAX_QUERIES + 1):
        assert not made.queries.at_limit
        made.queries.begin(number, "listServers", b"[]")
    assert made.queries.at_limit


@pytest.mark.parametrize("body", [b"", b"{", b"7", b"[" * 300, b'["\xff"]', b'{"a":1}'])
async def test_every_request_is_answered(body: bytes) -> None:
    made = Answers()
    made.queries.begin(1, "describeServer", body)
    assert made.found[1][0] is False


async def test_a_fault_of_ours_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Discovery):
        def answer(self, operation: Any, arguments: list[Any]) -> Any:
            raise RuntimeError("no FTS5 here")

    made = Answers(Broken(Catalog()))
    made.queries.begin(1, "searchTools", b'["x"]')
    ok, error = made.found[1]
    assert not ok and "Cellblock failed" in error["message"] and "no FTS5" in caplog.text


async def test_an_answer_over_the_cap_says_what_to_do() -> None:
    servers = {f"s{n}": ServerEntry(f"s{n}", "x" * 100, f"s{n}") for n in range(100)}
    made = Answers(Discovery(Catalog(1, servers)), most=5_000)
    made.queries.begin(1, "listServers", b"[]")
    assert made.found[1][0] is False and "too large" in made.found[1][1]["message"]


async def test_what_is_asked_again_in_one_go_is_made_once_and_made_anew_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Answers()
    asked: list[str] = []
    answer = Discovery.answer

    def counting(self: Discovery, op: Any, arguments: list[Any]) -> Any:
        asked.append(op)
        return answer(self, op, arguments)

    monkeypatch.setattr(Discovery, "answer", counting)
    # The first is answered at once; the others wait for the next turns.
    for number in range(4):
        made.queries.begin(number, "listServers", b"[]")
    await turns()
    assert len(made.found) == 4 and all(found == made.found[0] for found in made.found.values())
    assert len(asked) == 2
    made.queries.begin(4, "listServers", b"[]")
    await turns()
    assert len(asked) == 3
