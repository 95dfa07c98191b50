"""A large result in a response: byte for byte what a decoded one gives, whole or kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from pydantic_core import to_json
from starlette.types import Message

from cellblock.base.offload.raw import Splices
from cellblock.base.offload.share import Share, share_of_one
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.store import LocalStore
from cellblock.run.large_results import LargeResult
from cellblock.run.response import LogEntry, RunResponse
from cellblock.serve.client import Owner
from cellblock.serve.http.spliced import Spliced
from cellblock.serve.outputs import run_output
from cellblock.serve.outputs.kept_outputs import KeptOutputs
from cellblock.serve.outputs.run_output import tool_result
from support.waits import within

VALUE: Any = {"a": [1, 2.5, 1e-7, None, 'é\U0001f600"\\\n\u2028'], "b": {"": []}}
OWNER = Owner("token", "a")


@pytest.fixture
async def share() -> AsyncGenerator[Share]:
    made = share_of_one()
    yield made
    await within(made.apart.close())


def response_with(result: Any) -> RunResponse:
    return RunResponse(logs=[LogEntry(level="log", message="é", time_ms=1)], result=result, diagnostics=[])


def written(result: types.CallToolResult) -> bytes:
    """As the SDK encodes it."""
    data = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    message = types.JSONRPCResponse(jsonrpc="2.0", id=1, result=data)
    return message.model_dump_json(by_alias=True, exclude_none=True).encode()


async def test_a_whole_result(share: Share) -> None:
    splices = Splices()
    small = await tool_result(response_with(VALUE), None, None, splices)
    large = await within(
        tool_result(response_with(LargeResult(to_json(VALUE), share=share)), None, None, splices)
    )
    assert b"".join(splices.spliced(written(large))) == written(small)
    # Where nobody puts it in, it is decoded.
    plain = await tool_result(response_with(LargeResult(to_json(VALUE), share=share)), None, None)
    assert written(plain) == written(small)


async def test_a_kept_result(share: Share, tmp_path: Path) -> None:
    value = [VALUE] * 50
    kept = KeptOutputs(OutputSettings(inline_bytes=2_000), LocalStore(tmp_path))
    try:
        texts: list[str] = []
        shown: list[Any] = []
        for result in (value, LargeResult(to_json(value), share=share)):
            made = await within(tool_result(response_with(result), kept, OWNER, Splices()))
            assert made.structured_content is not None
            shown.append(made.structured_content["result"])
            (link,) = made.structured_content["outputs"]
            found, text = await kept.read(OWNER, str(link["uri"]).split("/")[-1], 1)
            texts.append(text)
            assert found.part == "result"
        assert shown[0] == shown[1] and texts[0] == texts[1]
    finally:
        await kept.close()


async def test_too_much_that_waits_is_an_error(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output._waiting, "_whole", 10)  # pyright: ignore[reportPrivateUsage]
    made = await within(
        tool_result(response_with(LargeResult(to_json(VALUE), share=share)), None, None, Splices())
    )
    assert made.structured_content is not None
    assert made.structured_content["result"] is None
    (why,) = made.structured_content["diagnostics"]
    assert why["code"] == "RESULT_NOT_READ" and "run to its end" in why["message"]


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
