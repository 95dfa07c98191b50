"""The broker's own caps behind the host's: a host that lies about logs and notices loses its runs and is replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellblock.run import payload
from cellblock.run.run_log import LOG_NOTE_BYTES
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from cellblock_worker.worker.log_budget import MAX_LOG_ENTRIES
from cellblock_worker.worker.states import MAX_NOTICES
from support.memory_host import HostedRun, Play, World, codes

MakeWorld = Callable[..., World]

LOGS = 10_000


async def many_bytes(run: HostedRun) -> None:
    run.leased()
    for _ in range(LOGS // 100 + LOG_NOTE_BYTES // 100 + 1):
        run.log("x" * 100)


async def many_entries(run: HostedRun) -> None:
    run.leased()
    for _ in range(MAX_LOG_ENTRIES + 2):
        run.log("")


async def many_notices(run: HostedRun) -> None:
    run.leased()
    for _ in range(MAX_NOTICES + 1):
        run.say(protocol.Notice(), b'{"code": "A", "message": "m"}')


@pytest.mark.parametrize(
    ("play", "what"),
    [(many_bytes, "more logs"), (many_entries, "more logs"), (many_notices, "more notices")],
)
async def test_a_host_that_sends_without_end_is_lost(play: Play, what: str, make_world: MakeWorld) -> None:
    world = make_world()
    host = await world.host(play)
    response = await world.run(limits={"maxLogBytes": LOGS})
    assert codes(response)[0] == "HOST_LOST"
    first = response.diagnostics[0]
    assert f"the worker host was lost: it sent {what} than a run may have" in first.message.lower()
    assert response.result is None
    assert sum(len(entry.message) for entry in response.logs) <= LOGS + LOG_NOTE_BYTES
    assert len(response.logs) <= MAX_LOG_ENTRIES + 1
    assert len(response.diagnostics) <= MAX_NOTICES + 1
    assert [identity for identity, _ in world.failed] == [host.identity]


async def test_what_an_honest_host_sends_at_its_cap_is_kept(make_world: MakeWorld) -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        run.log("x" * LOGS)
        run.log("[logs truncated: over maxLogBytes; later output is dropped]")
        for _ in range(MAX_NOTICES):
            run.say(protocol.Notice(), b'{"code": "A", "message": "m"}')
        run.done(1)

    world = make_world()
    await world.host(play)
    response = await world.run(limits={"maxLogBytes": LOGS})
    assert response.result == 1 and len(response.logs) == 2 and len(response.diagnostics) == MAX_NOTICES
    assert not world.failed


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (protocol.Notice(), 64 * 1024 + 1),
        (protocol.Query(id=1, op="listServers"), 64 * 1024 + 1),
        (protocol.Leased(wall_ms=0), 1),
        (protocol.Status(warm=0, booting=0, running=0, wanted=0), 1),
        (protocol.Ended(reason="finished", outcome="done"), 1024 * 1024 + 1),
    ],
    ids=lambda value: value.t if isinstance(value, protocol.Message) else "",
)
async def test_a_host_that_sends_a_body_over_its_cap_is_lost_before_it_is_decoded(
    message: protocol.FromHost, size: int, monkeypatch: pytest.MonkeyPatch, make_world: MakeWorld
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(payload, "decode", lambda body: decoded.append(len(body)))  # pyright: ignore

    async def play(run: HostedRun) -> None:
        run.leased()
        run.say(message, b" " * size)

    world = make_world(max_message_bytes=1024 * 1024)
    host = await world.host(play)
    response = await world.run(limits={"maxLogBytes": 1000})
    assert codes(response) == ["HOST_LOST"] and f"over {size - 1}" in response.diagnostics[0].message
    assert [identity for identity, _ in world.failed] == [host.identity] and decoded == []


@pytest.mark.parametrize("is_leased", [True, False])
@pytest.mark.parametrize(
    ("reason", "outcome", "code"),
    [
        ("finished", "none", "WORKER_CRASHED"),
        ("cpu", "done", "SANDBOX_LIMIT"),
        ("crashed", "exception", "WORKER_CRASHED"),
        ("boot_failed", "done", "WORKER_UNAVAILABLE"),
    ],
)
async def test_an_end_and_an_outcome_that_do_not_go_together_are_no_success(
    reason: str, outcome: str, code: str, *, is_leased: bool, make_world: MakeWorld
) -> None:
    async def play(run: HostedRun) -> None:
        if is_leased:
            run.leased()
        run.ended(reason, outcome=outcome, body=b'"forged"')

    world = make_world()
    await world.host(play)
    response = await world.run()
    assert codes(response) == [code] and response.result is None


@pytest.mark.parametrize("name", ["done", "failed"])
async def test_an_outcome_that_is_no_end_is_no_message_of_a_host(name: str, make_world: MakeWorld) -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        header = {"t": name, "ms": 1} | ({"kind": "exception"} if name == "failed" else {})
        world.link.deliver(run.host.identity, run.token, pack_header(header), b"1")

    world = make_world()
    host = await world.host(play)
    assert codes(await world.run()) == ["HOST_LOST"]
    assert [identity for identity, _ in world.failed] == [host.identity]


@pytest.mark.parametrize("claims", [1, 2**53 - 1])
async def test_a_worker_that_has_not_read_what_it_says_is_killed(claims: int, make_world: MakeWorld) -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        await run.call(1, value={"text": "x"})
        run.say(protocol.Took(bytes=claims))

    world = make_world()
    await world.host(play)
    response = await world.run()
    assert codes(response) == ["PROTOCOL_VIOLATION"] and not world.failed
