"""What is read apart is what the loop would have read: the functions of processes, held against those of the loop."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import asdict
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage
from pydantic_core import to_json

from cellblock.base.errors import ToolCallError
from cellblock.run import answers_apart, inputs_apart, large_results, looks_apart, payload
from cellblock.run.call_results import result_of
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.catalog.outputs import ResultKind
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.incoming import VALUE_KEY, read_message
from cellblock.tools.upstream.lenience import soften
from cellblock.types.learning.observation import fingerprint
from cellblock.types.learning.record import decoded
from cellblock.types.learning.sample import GivenOutput, observe

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

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": ["integer", "array", "string"], "maxItems": 3}, "n": {"enum": ["x", "y"]}},
    "additionalProperties": True,
}


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
    return [*ODD, *(json.dumps(made(source)).encode() for _ in range(300))]


@pytest.mark.parametrize("schema", [SCHEMA, None, True])
def test_inputs(schema: Any) -> None:
    validator = InputValidator(schema)
    for body in bodies():
        facts, parts = inputs_apart.read({"label": "a tool"}, body, to_json(schema))
        try:
            value = payload.decode(body) if body else {}
        except payload.PayloadError as error:
            assert facts == {"unreadable": str(error)}
            continue
        violation = validator.check(value)
        assert facts["violation"] == (None if violation is None else asdict(violation))
        if violation is None:
            # As the SDK spells the arguments of a request.
            request = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="m", params={"arguments": value})
            spelled = request.model_dump_json(by_alias=True, exclude_unset=True).encode()
            assert spelled.endswith(b'{"arguments":' + parts[0] + b"}}")


def test_rules_of_the_policy() -> None:
    rule = {"properties": {"a": {"type": "integer"}}}
    for body in (b'{"a":1}', b'{"a":"x"}', b"{}"):
        facts, _ = inputs_apart.read({"label": ""}, body, b"null", to_json(True), to_json(rule))
        found = InputValidator(rule, strict=True).check(json.loads(body))
        assert facts["refusal"] == (None if found is None else found.sentence)


def test_results_of_scripts() -> None:
    for body in bodies():
        facts, parts = large_results.read({}, body)
        try:
            value = payload.decode(body)
        except payload.PayloadError as error:
            assert facts == {"refused": str(error)}
            continue
        assert parts == [to_json(value)]
        text = json.dumps({"result": value}, ensure_ascii=False)
        (inline,) = large_results.spell({"most": None, "media": True}, parts[0])[1]
        assert to_json(text)[:-2].endswith(inline)
        assert large_results.spell({"most": 0}, parts[0])[1] == [large_results.document(value)]


CONTENTS = [
    b'"content":[{"type":"text","text":"{\\"a\\":[1,2.50]}"}]',
    b'"content":[{"type":"text","text":"a"},{"type":"image","data":"aGk=","mimeType":"image/png"}]',
    b'"content":[],"structuredContent":{"result":[1,{"x":null}]}',
    b'"structuredContent":{"result":1,"b":2}',
    b'"content":[{"type":"text","text":"\\ud800 half"}]',
    b'"content":[],"structuredContent":{"a":' + b"[" * 140 + b"]" * 140 + b"}",
    b'"content":[{"type":"text","text":"it failed"}],"isError":true',
    b'"content":[],"structuredContent":{"a":NaN}',
    b'"content":7',
    b'"content":[{"type":"odd"}]',
    b'"content":[],"structuredContent":[1,null]',
    b'"content":[{"type":"text","text":"x"}],"structuredContent":null',
    b'"structuredContent":false,"_meta":{"a":null,"cellblock/kept":{"content":7}}',
    b'"content":[{"type":"text","text":"x"},{"type":"odd","n":[null]}],"_meta":{"cellblock/kept":{}}',
    b'"content":[{"type":"odd"},{"type":"text","text":"it failed"}],"isError":true',
    b'"content":[],"structuredContent":["it failed"],"isError":true',
    b'"content":[{"type":"text","text":"' + b"[" * 512 + b"]" * 512 + b'"}]',
    b'"content":[{"type":"text","text":"' + b"[" * 513 + b"]" * 513 + b'"}]',
    b'"content":[{"type":"text","text":"[\\"\\\\ud800\\",' + b"9" * 5000 + b']"}]',
    b'"content":[{"type":"text","text":"[NaN]"}]',
]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("parse_text", "box"), [(False, None), (True, "result")])
def test_results_of_tools(content: bytes, parse_text: bool, box: str | None) -> None:
    raw = b'{"jsonrpc":"2.0","id":5,"result":{' + content + b"}}"
    tool = ToolEntry("tool", "tool", parse_text=parse_text, box=box)
    facts, parts = answers_apart.lighten(
        {"calls": {"5": [parse_text, box, None]}, "token": "t", "cursor": "c"}, raw
    )
    small = outcome(parts[0], tool)
    whole = outcome(raw, tool)
    if facts["what"] == "value" and "no_form" not in facts:
        assert json.loads(parts[0])["result"]["_meta"] == {VALUE_KEY: "t"}
        assert whole == (facts["kind"], parts[1])
    elif "no_form" in facts:
        assert isinstance(whole, str) and facts["no_form"] in whole
    else:
        assert small == whole


@pytest.mark.parametrize("json_text", [False, True])
def test_what_is_learnt_of_results(json_text: bool) -> None:
    given = {"type": "array", "maxItems": 1}
    output = GivenOutput(fingerprint(given, json_text), InputValidator(given), json_text)
    texts = [body.decode("utf-8", "replace") for body in bodies()[:40]]
    offered: list[tuple[ResultKind, list[bytes]]] = [
        ("value", bodies()[:40]),
        ("json", [text.encode() for text in texts if text[:1] in ("[", "{")]),
        ("text", [to_json(text) for text in texts]),
        ("result", [b'{"content":[]}']),
    ]
    for kind, found in offered:
        for body in found:
            schemas = (to_json(None), to_json(given))
            facts, _ = looks_apart.look({"kind": kind, "now": 1.0, "json_text": json_text}, body, *schemas)
            learnt = decoded(facts["body"])
            seen = observe(kind, body, 1.0, given=output)
            assert learnt.given == seen.given
            assert (facts["samples"], learnt.skipped, learnt.texts) == (
                seen.samples,
                seen.skipped,
                seen.texts,
            )


def outcome(raw: bytes, tool: ToolEntry) -> tuple[str, bytes] | str:
    """What the loop makes of a message: kind and body, or the text of the error."""
    item = soften(read_message(raw))
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    try:
        result = types.CallToolResult.model_validate(item.message.result, by_name=False)
        found = asyncio.run(result_of(result, "server", tool, 1_000_000))
    except ToolCallError as error:
        return error.message
    except ValueError:
        return "no result"
    return found.kind, found.body
