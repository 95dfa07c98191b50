"""The loopback listener against hostile requests."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.redirect import MAX_HEAD_BYTES, RedirectListener
from support.waits import within

STATE = "s" * 43


async def ask(
    listener: RedirectListener, target: str, *, method: str = "GET", host: str | None = None
) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    host = host if host is not None else f"127.0.0.1:{listener.port}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    try:
        return await within(reader.read())
    finally:
        writer.close()


async def listening() -> RedirectListener:
    listener = RedirectListener()
    await listener.start(0)
    listener.expect(f"https://login.example/authorize?state={STATE}&x=1")
    return listener


async def test_only_our_answer_is_taken_and_only_once() -> None:
    listener = await listening()
    try:
        for target, status in [
            (f"/callback?code=x&state={'t' * 43}", b"400"),
            ("/callback?code=x", b"400"),
            (f"/callback?code=x&state={STATE}&state={STATE}", b"400"),
            (f"/callback?code=x&state={STATE}%ff", b"400"),
            (f"/?code=x&state={STATE}", b"404"),
            (f"//callback?code=x&state={STATE}", b"404"),
            ("/callback?" + "&".join(f"a{n}=1" for n in range(500)), b"400"),
        ]:
            assert (await ask(listener, target)).split()[1] == status, target
        assert (await ask(listener, f"/callback?code=x&state={STATE}", host="evil.example")).split()[
            1
        ] == b"404"
        assert (await ask(listener, f"/callback?code=x&state={STATE}", method="POST")).split()[1] == b"405"
        page = await ask(listener, f"/callback?code=first&state={STATE}&iss=https%3A%2F%2Flogin.example")
        assert page.split()[1] == b"200"
        assert b"default-src 'none'" in page
        assert b"no-store" in page
        assert b"first" not in page
        assert (await ask(listener, f"/callback?code=second&state={STATE}")).split()[1] == b"400"
        answer = await listener.answer(20)
        assert (answer.code, answer.state, answer.iss) == ("first", STATE, "https://login.example")
    finally:
        await listener.close()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("error=access_denied", "The login was denied."),
        ("error=server_error", "refused: server_error"),
        ("error=%1b%5b2Jx%3Cscript%3E", r"\u001b[2Jx<script>"),
        ("error=" + "e" * 500, "e" * 79 + "…"),
        ("code=x&error=access_denied", "The login was denied."),
        ("nothing=1", "refused: no code"),
    ],
)
async def test_refusals_are_told_in_one_clean_line(query: str, told: str) -> None:
    listener = await listening()
    try:
        page = await ask(listener, f"/callback?{query}&state={STATE}")
        assert b"<script>" not in page
        with pytest.raises(LoginError) as caught:
            await listener.answer(20)
        assert told in caught.value.message
    finally:
        await listener.close()


async def test_waiting_has_an_end_and_so_have_long_heads() -> None:
    listener = await listening()
    try:
        assert await ask(listener, "/" + "x" * (MAX_HEAD_BYTES + 10)) == b""
        with pytest.raises(LoginError, match=r"not come back within 0\.05 s"):
            await listener.answer(0.05)
    finally:
        await listener.close()


async def test_a_port_that_is_taken_is_told() -> None:
    listener, second = await listening(), RedirectListener()
    try:
        with pytest.raises(LoginError, match=f"port {listener.port}"):
            await second.start(listener.port)
    finally:
        await listener.close()
        await second.close()
