"""What is read apart is what the loop would have read: the functions of processes, held against those of the loop."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from typing import Any

import mcp_types as types
import pytest
from pydantic_core import to_json

from cellblock.run import inputs_apart, large_results, payload
from cellblock.tools.schemas.validation import InputValidator

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
