"""What a run's client is given: results, media and large results."""

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from pydantic_core import to_json
from starlette.types import Message

from cellblock.base.errors import (
    MAX_MESSAGE_CHARS,
    CallDenied,
    Certainty,
    ScriptError,
    ToolCallError,
    ToolNotFound,
)
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.store import LocalStore
from cellblock.run import answers as module, results
from cellblock.run.answers import Answers
from cellblock.run.replies import HELD_FACTOR, Replies, encode_error
from cellblock.run.response import LogEntry, RunResponse
from cellblock.run.results import LargeResult, Media, UnreadableResult, read_result, taken_out
from cellblock.serve import run_output
from cellblock.serve.http.bodies import Spliced
from cellblock.serve.kept_outputs import KeptOutputs
from cellblock.serve.run_output import tool_result
from cellblock.serve.service import Owner
from cellblock.serve.splices import Splices
from cellblock.tools.catalog.model import ServerEntry, ToolEntry, ToolOutput
from support.accounts import account_of
from support.loop_steps import longest_step
from support.memory_host import turns
from support.nesting import listed, nested
from support.waits import within

MOST = 800
TOLD_FROM = 100


class Worker:
    """Keeps what it was sent, and reads it when a test says so, as the sandbox does."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, bool, bytes]] = []
        self.read: list[int] = []
        self.replies = Replies(lambda *reply: self.unread.append(reply), MOST)
        self._taken = 0

    @property
    def unread_bytes(self) -> int:
        return sum(len(body) for _, _, body in self.unread)

    def read_one(self) -> None:
        call_id, _, body = self.unread.pop(0)
        self.read.append(call_id)
        self._taken += len(body)
        if self._taken > MOST / 8:
            taken, self._taken = self._taken, 0
            assert self.replies.took(taken)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.mark.parametrize("seed", range(20))
async def test_all_are_read_in_order_and_few_wait_at_the_host(seed: int, worker: Worker) -> None:
    chance = random.Random(seed)
    for call_id in range(100):
        worker.replies.reply(call_id, True, b"x" * chance.choice((0, 1, 50, 99, 100, 101, 500, MOST)))
        assert worker.unread_bytes <= MOST + TOLD_FROM
        if chance.random() < 0.3 and worker.unread:
            worker.read_one()
    while worker.unread:
        worker.read_one()
    assert worker.read == list(range(100)) and worker.replies.has_room


async def test_who_waits_for_room_gets_on_when_the_worker_reads(worker: Worker) -> None:
    assert worker.replies.room() is None
    for call_id in range(3):
        worker.replies.reply(call_id, True, b"x" * MOST)
    waiting = asyncio.ensure_future(worker.replies.room())
    worker.read_one()
    await turns()
    assert not waiting.done() and not worker.replies.has_room
    worker.read_one()
    await turns()
    assert waiting.done()


@pytest.mark.parametrize("size", [0, TOLD_FROM, 301, 2**53 - 1])
async def test_what_a_worker_cannot_have_read_is_not_believed(size: int, worker: Worker) -> None:
    worker.replies.reply(1, True, b"x" * 300)
    assert not worker.replies.took(size)
    assert worker.replies.took(300) and not worker.replies.took(300)


async def test_an_answer_that_would_be_too_much_is_an_error(worker: Worker) -> None:
    for call_id in range(1 + HELD_FACTOR + 2):
        worker.replies.reply(call_id, True, b"x" * MOST)
    while worker.unread:
        call_id, ok, body = worker.unread[0]
        assert ok == (call_id <= HELD_FACTOR) and len(body) <= MOST
        worker.read_one()
    assert worker.read == list(range(HELD_FACTOR + 3)) and worker.replies.has_room


async def test_none_is_sent_after_the_end(worker: Worker) -> None:
    for call_id in range(3):
        worker.replies.reply(call_id, True, b"x" * MOST)
    worker.replies.close()
    worker.read_one()
    assert worker.unread == []


LEAST_CAP = 4096
"""The least `max_message_bytes` that the configuration allows."""


@pytest.mark.parametrize(
    ("result", "left_out"),
    [({"a": [1]}, ()), ({"text": "x" * 5000}, ("result",)), (nested(200, listed), ("result",))],
    ids=["all of it fits", "long", "deep"],
)
def test_a_result_that_is_too_much_is_left_out_and_nothing_else(
    result: Any, left_out: tuple[str, ...]
) -> None:
    error = ToolCallError("m", hint="h", certainty=Certainty.COMPLETED, result=result, serverId="s")
    said = json.loads(encode_error(error, LEAST_CAP))
    assert said == {name: value for name, value in error.as_json().items() if name not in left_out}


@pytest.mark.parametrize("letter", ["x", "\x00", "é", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("details", [{}, {"example": "x" * 9000}, {"received": nested(300, listed)}])
def test_whatever_it_says_it_is_within_the_least_cap(letter: str, details: dict[str, Any]) -> None:
    body = encode_error(ToolNotFound(letter * 100_000, hint=letter * 100_000, **details), LEAST_CAP)
    assert len(body) <= LEAST_CAP
    said = json.loads(body)
    assert said["errorClass"] == "ToolNotFoundError" and len(said["message"]) >= 100


def test_what_is_certain_is_said_at_any_length() -> None:
    said = json.loads(encode_error(CallDenied("x" * 9000, hint="y", code="APPROVAL_DENIED"), LEAST_CAP))
    assert (said["certainty"], said["code"], said["fault"]) == ("not_started", "APPROVAL_DENIED", "script")


def test_a_message_to_a_script_has_a_most() -> None:
    error = ScriptError("x" * 1_000_000, hint="y" * 1_000_000)
    assert (len(error.message), len(error.hint)) == (MAX_MESSAGE_CHARS, MAX_MESSAGE_CHARS)


SERVER = ServerEntry("tracker", "Tracker", "tracker")
TOOL = ToolEntry("list", "list")


def answered(value: Any, kind: Any = "value", *, keeps: bool = True, ensure_ascii: bool = True) -> Answers:
    answers = Answers(keeps)
    answers.add("tracker", "list", kind, json.dumps(value, ensure_ascii=ensure_ascii).encode())
    return answers


def test_each_text_of_a_field_is_looked_at_once_however_many_comparisons_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(module, "letters", lambda text: looked.append(text) or text.lower())
    answers = answered([{"state": f"OPEN {number}"} for number in range(1000)])
    numbers = range(module.MAX_COMPARED)
    told = answers.of_values("".join(f"if (x.state === 'open {number}') f();\n" for number in numbers))
    assert [(one.absent, one.hint) for one in told] == [
        (f"open {number}", f"Results have 'OPEN {number}'.") for number in numbers
    ]
    assert len(looked) == 1000 + module.MAX_COMPARED


@pytest.mark.parametrize(
    ("code", "rows", "severe"),
    [
        ("rows.filter((r) => r.at === 'Finland')", [{"at": "FI"}, {"at": "SE"}] * 5, False),
        ("rows.filter((r) => r.at === 'Finland')", [{"at": "FI"}, {"at": "SE"}], None),
        ("rows.filter((r) => r.at === 'NO' || r.at === 'SE')", [{"at": "FI"}, {"at": "SE"}] * 5, None),
        ("rows.filter((r) => r.at === 'x')", [{"at": f"{number}"} for number in range(20)], None),
        ("rows.sort((a, b) => a.n - b.n)", [{"n": 1}, {"n": None}], False),
        ("rows.sort((a, b) => b.n - a.n)", [{"n": 1}, {"n": None}], None),
        ("rows.filter((r) => r.n).sort((a, b) => a.n - b.n)", [{"n": 1}, {"n": None}], None),
        ("rows.reduce((s, r) => s + r.n, 0) / rows.length", [{"n": None}], False),
        ("rows.reduce((s, r) => s + r.n, 0) / rows.length", [{"n": 1}], None),
        ("rows.reduce((s, r) => s + r.n, 0)", [{"n": None}], None),
        ("rows.filter((r) => new Date(r.at) < now)", [{"at": None}], False),
        ("rows.filter((r) => r.at && new Date(r.at) < now)", [{"at": None}], None),
        ("rows.filter((r) => new Date(r.at) >= now)", [{"at": None}], None),
        ("rows.filter((r) => r.who === '')", [{"who": None}, {"who": "a"}], False),
        ("rows.filter((r) => r.who === undefined)", [{"who": None}], False),
        ("rows.filter((r) => r.who == undefined)", [{"who": None}], None),
        ("rows.filter((r) => r.who === '')", [{"who": None}, {"who": ""}], None),
        ("rows.filter((r) => r.late).length", [{"late": "true"}, {"late": "false"}], True),
        ("if (!r.late) f()", [{"late": "false"}], True),
        ("rows.filter((r) => r.late).length", [{"late": "N"}, {"late": "Y"}], True),
        ("rows.filter((r) => r.late).length", [{"late": "true"}, {"late": "soon"}], None),
        ("rows.filter((r) => r.late).length", [{"late": True}], None),
        ("rows.filter((r) => ['NO', 'DK'].includes(r.at))", [{"at": "FI"}, {"at": "SE"}] * 5, False),
        ("rows.filter((r) => ['NO', 'SE'].includes(r.at))", [{"at": "FI"}, {"at": "SE"}] * 5, None),
        ("switch (r.at) { case 'NO': f(r, 'a'); }", [{"at": "FI"}, {"at": "SE"}] * 5, False),
        ("switch (r.at) { case 'NO': f(); break; case 'SE': g(); }", [{"at": "FI"}, {"at": "SE"}] * 5, None),
        ("rows.filter((r) => r.at !== 'canceled')", [{"at": "cancelled"}, {"at": "open"}], True),
        ("rows.filter((r) => r.at === 'FAILED')", [{"at": "FAILURE"}, {"at": "SUCCESS"}], False),
        ("rows.filter((r) => r.at === 'main')", [{"at": "refs/heads/main"}], False),
        ("await p.list({ at: 'all' }); r.at === 'NO'", [{"at": "FI"}, {"at": "SE"}] * 5, False),
        ("rows.find((r) => r.mail === c.mail)", [{"mail": "A1@x"}, {"mail": "a1@x"}], True),
        ("rows.find((r) => r.mail === c.mail)", [{"mail": "A1@x"}, {"mail": "b1@x"}], None),
        ("rows.find((r) => r.mail === c.mail.toLowerCase())", [{"mail": "A1@x"}, {"mail": "a1@x"}], None),
        ("rows.find((r) => r.id === c.owner)", [{"id": "007", "owner": "7"}], True),
        ("rows.find((r) => r.id === c.owner)", [{"id": f"{n}", "owner": "2"} for n in range(3)], None),
        ("items.get(r.sku)", [{"sku": "a-01"}, {"text": "one\nA-01 two"}], True),
        ("items.get(r.sku)", [{"sku": "a-01"}, {"text": "A-01", "item": "a-01"}], None),
        ("s + Number(r.sum)", [{"sum": "1", "currency": "EUR"}, {"sum": "2", "currency": "USD"}], True),
        ("s + Number(r.sum)", [{"sum": "1", "currency": "EUR"}, {"sum": "2", "currency": "EUR"}], None),
        ("s[r.currency] + r.sum", [{"sum": 1, "currency": "EUR"}, {"sum": 2, "currency": "USD"}], None),
        ("s + r.n", [{"n": 1, "of": {"currency": "EUR"}}, {"n": 2, "of": {"currency": "USD"}}], None),
    ],
)
def test_what_values_show_to_be_wrong_or_in_vain_is_told(code: str, rows: Any, severe: bool | None) -> None:
    told = {one.is_wrong for one in answered({"rows": rows}).of_values(code)}
    assert told == (set() if severe is None else {severe})


def test_a_value_that_a_schema_has_may_be_asked_for() -> None:
    code, answers = "rows.filter((r) => r.at === 'NO')", answered({"rows": [{"at": "FI"}, {"at": "SE"}] * 5})
    assert answers.of_values(code, [{"enum": ["FI", "DK"]}, None])
    assert not answers.of_values(code, [{"enum": ["FI", "NO"]}, None])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Error: it is closed", "Error: it is closed"),
        ('{"ok": false, "why": "closed"}', '{\\"ok\\": false'),
        ({"success": False}, '{"success": false'),
        ("No error was found", None),
        ({"rows": [{"ok": False}]}, None),
        ({"ok": True}, None),
        ({"queued": False, "reason": "closed"}, '{"queued": false'),
        ({"open": False, "name": "a"}, None),
    ],
)
def test_an_answer_that_says_that_nothing_was_done_is_found(answer: Any, said: str | None) -> None:
    answers = answered(answer)
    assert answers.refusals("f(r.open)") == ({} if said is None else {"list": said})
    assert not answers.refusals("f(r.ok, r.success, r.queued)").keys() - {
        "list" if isinstance(answer, str) else ""
    }


@pytest.mark.parametrize(
    ("answer", "member"),
    [
        ({"items": [1, 2], "total_count": 5}, ["total_count"]),
        (json.dumps({"rows": [{}], "count": 3}), ["count"]),
        ({"items": [1, 2], "total": 2}, []),
        ({"items": [], "total": 2}, []),
        ({"items": [1], "others": [1], "total": 2}, []),
        ({"total": 7, "open": 3}, []),
        ({"items": [1], "meta": {"totalResults": 3}}, ["totalResults"]),
        ({"items": [1], "stats": {"count": 3}}, []),
        ({"items": [1], "truncated": True}, ["truncated"]),
        ({"items": [{"total": "5"}], "total": "5"}, []),
        ({"items": [1], "page": 1, "pages": 3}, ["pages"]),
        ({"items": [1], "page": 3, "pages": 3}, []),
    ],
)
def test_a_list_that_is_shorter_than_its_total_is_not_all(answer: Any, member: list[str]) -> None:
    answers = answered(answer, "text" if isinstance(answer, str) else "value")
    assert answers.unread() == [("list", one) for one in member]


LIKE_TITLE = ("titl", "itle", "Title", "titles", "t.tle")


@pytest.mark.parametrize(
    ("answers", "field", "others"),
    [
        (answered({"title": 1}), "title", LIKE_TITLE),
        (answered({"deep": [{"title": None}]}), "title", LIKE_TITLE),
        (answered(json.dumps({"title": 1})), "title", LIKE_TITLE),
        (answered({"text": json.dumps({"inner": json.dumps({"title": 1})})}), "title", LIKE_TITLE),
        (answered({"größe": 1}), "größe", ["grösse"]),
        (answered({"größe": 1}, ensure_ascii=False), "größe", ["grösse"]),
    ],
    ids=["at the top", "deep", "in a JSON text", "in a JSON text in a JSON text", "escaped", "in UTF-8"],
)
def test_a_field_is_found_wherever_it_is_and_however_it_is_written(
    answers: Answers, field: str, others: tuple[str, ...]
) -> None:
    assert answers.may_have(field)
    assert [other for other in others if answers.may_have(other)] == []


def test_what_was_not_kept_may_have_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Answers(keeps=True).may_have("title"), "no tool was called"
    assert answered({}, keeps=False).may_have("title")
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10)
    assert not answered({"a": 1}).may_have("title")
    assert answered({"a": 1, "b": 2}).may_have("title")
    assert answered(ROWS).place_of("total", ["rows", "page"], None) == "", "nor is it known where"


ROWS = {"rows": [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "note": ""}], "page": {"total": 2}}


@pytest.mark.parametrize(
    ("field", "beside", "value", "place"),
    [
        ("total", ["rows", "page"], ROWS, "page"),
        ("total", ["id", "name"], ROWS, None),
        ("none", ["rows", "page"], ROWS, None),
        ("note", ["id", "name"], ROWS, ""),
        ("name", ["rows", "page"], ROWS, None),
        ("total", ["other"], ROWS, ""),
        ("total", ["rows", "page"], json.dumps(ROWS), "page"),
        ("total", ["text"], {"text": json.dumps(ROWS)}, None),
        ("total", ["text"], {"text": "[no JSON", "in": {"of": {"total": 1}}}, "in.of"),
    ],
)
def test_a_field_counts_where_such_objects_are(
    field: str, beside: list[str], value: Any, place: str | None
) -> None:
    tools = (None, ("tracker", "list"), ("tracker", "other"))
    assert [answered(value).place_of(field, beside, tool) for tool in tools] == [place, place, None]


@pytest.mark.parametrize("value", [{"state": "on", "mode": "x"}, '{"state" : "on", "mode": "x"}'])
def test_a_text_counts_in_its_own_field(value: Any) -> None:
    places = [answered(value).place_of("on", [], None, field) for field in ("state", "mode")]
    assert places == ["", None]


DECLARED = ToolOutput("declared", "", schema={"type": "object"})


@pytest.mark.parametrize(
    ("value", "kind", "assumed", "got"),
    [
        ('{"a": 1}', "text", DECLARED, "document"),
        ('[{"a": 1}]', "text", None, "document"),
        ("{a sentence in braces", "text", None, "text"),
        ("a sentence", "text", DECLARED, "text"),
        ({"a": 1}, "json", DECLARED, None),
        ({"a": 1}, "value", None, None),
        ('{"a": 1}', "text", ToolOutput("observed", "", document={}), None),
        ("a sentence", "text", ToolOutput("observed", "", text=True), None),
    ],
)
def test_texts_where_something_else_was_assumed(value: Any, kind: str, assumed: Any, got: str | None) -> None:
    found = answered(value, kind).unlike([(SERVER, TOOL, assumed)])
    expected = {} if got is None else {("tracker", "list"): (got == "document", got == "text")}
    assert {tool: (output.document is not None, output.text) for tool, output in found.items()} == expected


def test_one_value_among_texts_and_nothing_is_said() -> None:
    answers = answered('{"a": 1}', "text")
    assert answers.unlike([(SERVER, TOOL, DECLARED)])
    answers.add("tracker", "list", "value", b'{"a": 1}')
    assert answers.unlike([(SERVER, TOOL, DECLARED)]) == {}


VALUE: Any = {"a": [1, 2.5, None, 'é\U0001f600"\\\n\u2028'], "b": {"": []}}
OWNER = Owner("token", "a")


def response_with(result: Any) -> RunResponse:
    return RunResponse(logs=[LogEntry(level="log", message="é", time_ms=1)], result=result, diagnostics=[])


def large(value: Any) -> LargeResult:
    return LargeResult(to_json(value), account=account_of())


def written(result: types.CallToolResult) -> bytes:
    """As the SDK encodes it."""
    data = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    message = types.JSONRPCResponse(jsonrpc="2.0", id=1, result=data)
    return message.model_dump_json(by_alias=True, exclude_none=True).encode()


async def test_a_whole_result() -> None:
    splices = Splices()
    small = written(await tool_result(response_with(VALUE), None, None, splices))
    with_token = await within(tool_result(response_with(large(VALUE)), None, None, splices))
    assert b"".join(splices.spliced(written(with_token))) == small
    # Where nobody puts it in, it is decoded.
    assert written(await tool_result(response_with(large(VALUE)), None, None)) == small


async def test_a_kept_result(tmp_path: Path) -> None:
    value = [VALUE] * 50
    kept = KeptOutputs(OutputSettings(inline_bytes=2_000), LocalStore(tmp_path))
    try:
        given: list[tuple[Any, str, str]] = []
        for result in (value, large(value)):
            made = await within(tool_result(response_with(result), kept, OWNER, Splices()))
            (link,) = made.structured_content["outputs"]
            found, text = await kept.read(OWNER, str(link["uri"]).split("/")[-1], 1)
            given.append((made.structured_content["result"], found.part, text))
        assert given[0] == given[1] and given[0][1] == "result"
    finally:
        await kept.close()


async def test_too_much_that_waits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output._waiting, "_whole", 10)  # pyright: ignore[reportPrivateUsage]
    made = await within(tool_result(response_with(large(VALUE)), None, None, Splices()))
    (why,) = made.structured_content["diagnostics"]
    assert (made.structured_content["result"], why["code"]) == (None, "RESULT_NOT_READ")
    assert "run to its end" in why["message"]


async def test_an_http_response_has_the_length_of_what_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    splices = Splices()
    token = splices.add(b"[" + b"1," * 300_000 + b"1]", on_gone=lambda: None)
    body = b'{"result":"' + token.encode() + b'"}'

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(body)).encode()), (b"x", b"y")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Spliced(handle, splices)({}, asyncio.Event().wait, send)  # pyright: ignore[reportArgumentType]
    whole = b"".join(message["body"] for message in sent[1:])
    assert whole == b'{"result":[' + b"1," * 300_000 + b"1]}"
    assert sent[0]["headers"] == [(b"x", b"y"), (b"content-length", str(len(whole)).encode())]
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 40).decode()
WAV = base64.b64encode(b"RIFF1234WAVEfmt ").decode()


def image(data: str = PNG, mime_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime_type}


def test_blocks_are_found_wherever_they_are_and_the_value_stays() -> None:
    sound = {"type": "audio", "data": WAV, "mimeType": "audio/wav", "annotations": {"priority": 1}}
    value: dict[str, Any] = {
        "content": [{"type": "text", "text": "a"}, image()],
        "more": {"deep": [sound, 1, None]},
    }
    shown, found = taken_out(value)
    assert found == [Media("image", "image/png", PNG), Media("audio", "audio/wav", WAV)]
    assert value["content"][1] == image()
    assert shown == {
        "content": [
            {"type": "text", "text": "a"},
            image("[image/png, 48 bytes: image block 1 of this response]"),
        ],
        "more": {
            "deep": [
                sound | {"data": "[audio/wav, 16 bytes: audio block 2 of this response]"},
                1,
                None,
            ]
        },
    }


@pytest.mark.parametrize(
    "block",
    [
        image(mime_type="image/svg+xml"),
        image(mime_type="text/html"),
        # What it says is not what it is.
        image(mime_type="image/jpeg"),
        image(WAV),
        image("no base64!"),
        image(PNG[:-1]),
        image(""),
        {"type": "text", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": WAV, "mimeType": "audio/wav\n"},
        {"type": "image", "data": [PNG], "mimeType": "image/png"},
        {"type": "image", "data": PNG},
    ],
)
def test_what_no_client_could_show_stays(block: dict[str, Any]) -> None:
    value = [block]
    shown, found = taken_out(value)
    assert shown is value and found == []


def test_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, found = taken_out([image()] * (results.MAX_BLOCKS + 2))
    assert len(found) == results.MAX_BLOCKS and shown[-1] == image()
    monkeypatch.setattr(results, "MAX_CHARS", 2 * len(PNG))
    shown, found = taken_out([image()] * 3)
    assert len(found) == 2 and shown[2] == image()
    deep = nested(results.MAX_LEVELS, listed, image())
    assert taken_out(deep) == (deep, [])
    assert taken_out([0] * results.MAX_VALUES + [image()])[1] == []


ODD = [
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":1e999,"b":-1e999}',
    b'{"a":' + b"9" * 400 + b"}",
    b'{"a":123456789012345678901234567890}',
    b'{"a":"\\ud800","\\udc00b":[]}',
    b"[" * 127 + b"]" * 127,
    b"[" * 129 + b"]" * 129,
    b"[" * 250 + b"]" * 250,
    b'{"a":1.0,"b":1e21,"c":1e-7,"d":-0.0,"e":0.1}',
    b'{"a":"\xff"}',
    b'{"a":',
    b"",
    b'"text"',
    b"null",
]

SCRIPT: Any = None
"""Is asked for places in stacks alone."""


def made(source: random.Random, depth: int = 0) -> Any:
    kind = source.randrange(8 if depth < 4 else 6)
    if kind >= 6:
        return (
            [made(source, depth + 1) for _ in range(source.randrange(5))]
            if kind == 6
            else {source.choice("abnö\u2028"): made(source, depth + 1) for _ in range(source.randrange(4))}
        )
    return source.choice([None, True, 0, -1, 2**70, 1.5, 1e300, "", "x", "é\U0001f600", '"\\\n'])


def bodies() -> list[bytes]:
    source = random.Random(11)
    return [*ODD, *(json.dumps(made(source), ensure_ascii=False).encode() for _ in range(300))]


async def read(body: bytes) -> bytes | None:
    """What is passed on of a result; None where it is refused."""
    try:
        return (await read_result(body, SCRIPT, account_of())).raw
    except UnreadableResult as error:
        assert error.diagnostic.severity == "error" and error.diagnostic.hint
        return None


async def test_a_result_is_passed_on_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded and spelled again where it has few values, and else looked at as bytes: the same is refused."""
    for body in bodies():
        monkeypatch.setattr(results, "MOST_VALUES", 200_000)
        decoded = await read(body)
        monkeypatch.setattr(results, "MOST_VALUES", -1)
        checked = await read(body)
        # Half a character is mended where it is decoded.
        assert (checked is None) is (decoded is None or b"\\ud" in body), body
        if checked is not None:
            assert checked == body and decoded is not None
            spelled = await LargeResult(checked, account=account_of()).spelled(None, as_json=True)
            assert json.loads(b'"%s"' % (spelled.text or b"")).encode() == body


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 1_500_000 + b"1]",
        b'["\n"]',
        b'["' + b"x" * 20 + b"\xff" + b'"]',
        b'["\\udc00"]',
        b"[" * 200 + b"]" * 200,
        b"[1,]",
    ],
    ids=range(6),
)
async def test_what_not_every_reader_reads_is_no_result(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_VALUES", -1)
    assert await read(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 1_300_000 + b"1]",
        b"[" + b"1," * 8_000_000 + b"1]",
        b'["' + b"\\n" * 8_000_000 + b'"]',
        b"[" + b'{"name":"someone","n":[1,2.5]},' * 490_000 + b"1]",
    ],
    ids=["containers", "numbers", "escapes", "rows"],
)
async def test_a_result_holds_the_loop_for_no_long_step(body: bytes) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    with longest_step() as longest:
        found = await read_result(body, SCRIPT, account_of())
        await found.spelled(None)
    assert longest[0] < 0.2
