"""Forged and foreign decisions about a run that waits, at a real daemon: none of them does anything."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cellblock_zygote import forked_cellblock
from support.http_daemon import Daemon, daemon
from support.parked_runs import WAITING, login, parked, waiting
from support.waits import within

CODE = 'import { echo } from "@codemode/servers/plain"; await echo({ text: "not to be sent" })'


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("parked"), **WAITING) as running:
        yield running


@pytest.fixture(scope="module")
async def run_id(served: Daemon) -> str:
    return await parked(served, CODE)


@pytest.fixture(autouse=True)
async def _nothing_happens(served: Daemon, run_id: str) -> AsyncIterator[None]:
    before = await waiting(served, run_id)
    yield
    assert before is not None and await waiting(served, run_id) == before
    assert not served.ledger.exists() or '"call"' not in served.ledger.read_text()


async def decision(served: Daemon, run_id: str, status: int, headers: dict[str, str], **more: str) -> None:
    for word in ("approve", "deny", "cancel"):
        path = f"/dashboard/parked/{run_id}/{word}"
        answer = await served.ask("POST", path, headers={**headers, **more}, body=b"{}")
        assert answer.status == status, (word, answer)


async def test_a_cookie_alone_decides_nothing(served: Daemon, run_id: str) -> None:
    cookie, _ = await login(served)
    await decision(served, run_id, 403, {"Cookie": cookie})
    own = {"Origin": f"http://127.0.0.1:{served.port}", "Sec-Fetch-Site": "same-origin"}
    await decision(served, run_id, 403, {"Cookie": cookie, **own})


async def test_a_wrong_key_decides_nothing(served: Daemon, run_id: str) -> None:
    (cookie, key), (_, others) = await login(served), await login(served)
    for wrong in ("", "x" * 43, others, key[:-1], f"{key}x", cookie.partition("=")[2]):
        await decision(served, run_id, 403, {"Cookie": cookie, "X-Cellblock-Key": wrong})
    twice = f"{key}\r\nX-Cellblock-Key: {key}"
    await decision(served, run_id, 403, {"Cookie": cookie, "X-Cellblock-Key": twice})


async def test_a_key_without_its_cookie_decides_nothing(served: Daemon, run_id: str) -> None:
    (_, key), (others, _) = await login(served), await login(served)
    await decision(served, run_id, 401, {"X-Cellblock-Key": key})
    await decision(served, run_id, 403, {"Cookie": others, "X-Cellblock-Key": key})
    await decision(served, run_id, 401, {"Cookie": f"cellblock_dashboard={key}", "X-Cellblock-Key": key})


async def test_a_hostile_page_decides_nothing(served: Daemon, run_id: str) -> None:
    cookie, key = await login(served)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{served.port + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": f"evil.example:{served.port}"},
        {"Origin": f"http://127.0.0.1:{served.port}", "Sec-Fetch-Site": "cross-site"},
    ):
        await decision(served, run_id, 403, {"Cookie": cookie, "X-Cellblock-Key": key}, **headers)
        await decision(served, run_id, 403, served.auth, **headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_post_decides(served: Daemon, run_id: str, method: str) -> None:
    cookie, key = await login(served)
    for headers in ({"Cookie": cookie, "X-Cellblock-Key": key}, served.auth):
        for word in ("approve", "deny", "cancel"):
            path = f"/dashboard/parked/{run_id}/{word}"
            answer = await served.ask(method, path, headers={**headers, "Content-Length": "0"}, body=b"")
            assert answer.status == 405


async def test_a_stranger_and_a_wrong_token_decide_nothing(served: Daemon, run_id: str) -> None:
    cookie, _ = await login(served)
    wrong = {"Authorization": "Bearer " + "x" * 43}
    await decision(served, run_id, 401, {})
    await decision(served, run_id, 401, wrong)
    await decision(served, run_id, 401, {**wrong, "Cookie": cookie})
    assert (await served.ask("GET", "/dashboard/parked")).status == 401


async def test_a_named_token_sees_and_decides_nothing(served: Daemon, run_id: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(str(forked_cellblock()), "token", "create", "ci", "--state-dir", str(served.folder / "s")),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await within(process.communicate(), 60)
    assert process.returncode == 0, err
    named = {"Authorization": f"Bearer {out.decode().split()[-1]}"}
    await decision(served, run_id, 403, named)
    assert (await served.ask("GET", "/dashboard/parked", headers=named)).status == 403


async def test_a_large_body_is_not_read(served: Daemon, run_id: str) -> None:
    path = f"/dashboard/parked/{run_id}/approve"
    for size in (16 * 1024 + 1, 1 << 40):
        headers = {**served.auth, "Content-Length": str(size)}
        assert (await served.ask("POST", path, headers=headers, body=b"{}")).status == 413
    chunk = b"4001\r\n" + b" " * 0x4001 + b"\r\n0\r\n\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {served.token}\r\n\r\n"
    answer = await served.raw(head.encode() + chunk)
    assert answer is not None and answer.status == 413


async def test_inputs_are_not_for_a_cookie_alone(served: Daemon, run_id: str) -> None:
    cookie, key = await login(served)
    looks = await served.ask("GET", "/dashboard/parked", headers={"Cookie": cookie})
    assert b"not to be sent" not in looks.body and json.loads(looks.body)["decides"] is False
    for headers in (
        {"Cookie": cookie, "X-Cellblock-Key": key},
        {"Cookie": cookie, **served.auth},
        served.auth,
    ):
        decides = await served.ask("GET", "/dashboard/parked", headers=headers)
        assert b"not to be sent" in decides.body and json.loads(decides.body)["decides"] is True


async def test_nothing_of_a_login_is_logged(tmp_path: Path) -> None:
    async with daemon(tmp_path, **WAITING, log={"level": "debug", "file": str(tmp_path / "log")}) as own:
        cookie, key = await login(own)
        run = await parked(own, CODE)
        path = f"/dashboard/parked/{run}/deny"
        headers = {"Cookie": cookie, "X-Cellblock-Key": key}
        assert (await own.ask("POST", path, headers=headers, body=b"")).status == 200
    said = (tmp_path / "log").read_text() + (tmp_path / "s" / "audit.jsonl").read_text()
    assert run in said and "declined" in said
    assert key not in said and cookie.partition("=")[2] not in said


async def test_where_there_is_no_token_a_login_is_needed(tmp_path: Path) -> None:
    async with daemon(tmp_path, "--no-auth", **WAITING) as own:
        run = await parked(own, CODE)
        await decision(own, run, 403, {})
        assert b"not to be sent" not in (await own.ask("GET", "/dashboard/parked")).body
        cookie, key = await login(own)
        headers = {"Cookie": cookie, "X-Cellblock-Key": key}
        assert (
            await own.ask("POST", f"/dashboard/parked/{run}/deny", headers=headers, body=b"")
        ).status == 200
