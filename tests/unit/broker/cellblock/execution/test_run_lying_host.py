"""The broker's own caps behind the host's: a host that lies about logs and notices loses its runs and is replaced."""

from __future__ import annotations

import pytest

from cellblock.execution.said import LOG_NOTE_BYTES
from cellblock_worker import protocol
from cellblock_worker.log_budget import MAX_LOG_ENTRIES
from cellblock_worker.worker_states import MAX_NOTICES
from memory_host import HostedRun, Play, World, codes

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
async def test_a_host_that_sends_without_end_is_lost(play: Play, what: str) -> None:
    world = World()
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
    await world.close()


async def test_what_an_honest_host_sends_at_its_cap_is_kept() -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        run.log("x" * LOGS)
        run.log("[logs truncated: over maxLogBytes; later output is dropped]")
        for _ in range(MAX_NOTICES):
            run.say(protocol.Notice(), b'{"code": "A", "message": "m"}')
        run.done(1)
        run.ended()

    world = World()
    await world.host(play)
    response = await world.run(limits={"maxLogBytes": LOGS})
    assert response.result == 1 and len(response.logs) == 2 and len(response.diagnostics) == MAX_NOTICES
    assert not world.failed
    await world.close()
