"""One worker that is a fake and breaks the protocol: it is killed, and what it said is not believed."""

import itertools

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker import hearing, worker
from cellblock_worker.worker.life import State
from cellblock_worker.worker.worker import Worker
from support.fake_worker import FakeWorkers
from support.worker_owner import MIB, Owner, booted, make_run, run_one

FLOOD = "for _ in range(3000): frame(b'12345', t='log', level='log', ms=7)"
VIOLATIONS = {
    "noise": "raw(b'\\xff' * 100)",
    "a frame over the cap": "raw((1 << 31).to_bytes(4, 'big') + b'\\0\\0')",
    "a header that is no map": "raw(encode_frame(b'\\x91\\x01'))",
    "an unknown message": "frame(t='nonsense')",
    "a message of the host": "frame(t='ended', reason='finished')",
    "a forged lease": "frame(t='leased', wait_ms=0)",
    "ready again": "ready()",
    "a call id of nothing": "frame(t='call', id=0, server='s', tool='t')",
    "an extra field": "frame(t='done', ms=0, ok=True)",
    "a body over its cap": "frame(b'x' * ((1 << 20) + 1), t='done', ms=0)",
    "a notice over its cap": "frame(b'x' * ((1 << 16) + 1), t='notice')",
    "a discovery request over its cap": "frame(b'x' * ((1 << 16) + 1), t='query', id=1, op='listServers')",
    "a failure over its cap": "frame(b'x' * ((1 << 18) + 1), t='failed', ms=0, kind='module')",
    "a body where there is none": "frame(b'x', t='took', bytes=1)",
    "a body over its cap that does not come": "raw(bytes.fromhex('00100000 000a 81a174a66e6f74696365'))",
    "keys in another order": "frame(b'{}', t='failed', kind='exception', ms=7)",
    "a name before the kind": "frame(b'x', level='log', t='log', ms=7)",
    "an integer in a long form": "raw(encode_frame(bytes.fromhex('82a174a4646f6e65a26d73cc07')))",
    "a text in a long form": "raw(encode_frame(bytes.fromhex('83a174d9036c6f67a56c6576656ca36c6f67a26d7307')))",
    "a map in a long form": "raw(encode_frame(bytes.fromhex('de0003a174a36c6f67a56c6576656ca36c6f67a26d7307')))",
    "a key twice": "raw(encode_frame(bytes.fromhex('82a174a46e6f7465a174a66e6f74696365')))",
    "a pause": "frame(t='pause')",
    "a resume": "frame(t='resume')",
    "a log entry over its cap": "frame(b'x' * 1037, t='log', level='log', ms=0)",
    "too many notices": "for _ in range(201): frame(b'{}', t='notice')",
}


AFTER_A_FLOOD = ("noise", "ready again", "a key twice", "a body over its cap", "too many notices")
"""Of the others `--thorough` shows it, too."""


@pytest.mark.parametrize(
    ("before", "act"),
    [
        pytest.param(before, act, id=f"{name}-{when}", marks=[] if is_usual else [pytest.mark.thorough])
        for name, act in VIOLATIONS.items()
        for before, when, is_usual in (
            ("", "at once", True),
            (FLOOD, "after a flood of logs", name in AFTER_A_FLOOD),
        )
    ],
)
async def test_a_worker_that_breaks_the_protocol_is_killed(
    before: str, act: str, fake_workers: FakeWorkers
) -> None:
    fake_workers.run(f"ready()\nread()\n{before}\n{act}\nframe(b'1', t='done', ms=0)\nhang()")
    ended, owner = await run_one("1", log_bytes=12)
    assert ended.reason == "protocol" and ended.detail
    assert "done" not in [header["t"] for header, _ in owner.said]


async def test_what_a_flood_costs_the_host_counts_as_the_runs_own(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(hearing, "thread_time", lambda: float(next(clock)))
    fake_workers.run("ready()\nread()\nframe(b'x', t='log', level='log', ms=0)\nhang()")
    ended, _ = await run_one("1", cpu_ms=900)
    assert ended.reason == "cpu" and ended.cpu_ms >= 1000


SLOWLY = """
for byte in encode_frame(pack_header({"t": "done", "ms": 0}), b"1"):
    raw(bytes([byte]))
    time.sleep(0.001)
hang()
"""


@pytest.mark.parametrize(
    ("act", "ends"),
    [
        pytest.param(SLOWLY, ("finished", "", b""), id="a frame that comes slowly is heard"),
        pytest.param(
            f"{FLOOD}\nos._exit(3)", ("crashed", "exit code 3", b""), id="dead after a flood of logs"
        ),
        pytest.param(
            "sys.stderr.write('last words')",
            ("crashed", "exit code 0", b"last words"),
            id="without an outcome exit code 0 is a crash",
        ),
    ],
)
async def test_how_a_run_ends(act: str, ends: tuple[str, str, bytes], fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\nread()\n{act}")
    ended, owner = await run_one("1", log_bytes=12)
    body = b"" if ended.outcome == "done" else owner.ended[0][1]
    assert (ended.reason, ended.detail, body) == ends


@pytest.mark.parametrize(
    "act", ["frame(b'x', t='log', level='log', ms=0)", "frame(b'1', t='done', ms=0)", "raw(b'\\0' * 6)"]
)
async def test_a_warm_worker_may_say_nothing(act: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\n{act}\nhang()")
    owner = Owner()
    Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert "ended" not in owner.events and owner.said == []


async def test_what_follows_the_end_is_not_heard(fake_workers: FakeWorkers) -> None:
    fake_workers.run(
        """
        ready()
        read()
        both = encode_frame(pack_header({"t": "done", "ms": 0}), b"1")
        raw(both + both + encode_frame(pack_header({"t": "log", "level": "log", "ms": 1}), b"late"))
        hang()
        """
    )
    ended, owner = await run_one("1")
    assert ended.reason == "finished"
    assert [header["t"] for header, _ in owner.said] == ["done"]


async def test_a_worker_that_does_not_read_its_replies_is_killed(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nread()\nframe(b'', t='call', id=1, server='s', tool='t', events='')\nhang()")
    made, owner = await booted(max_frame_bytes=256 * 1024)
    made.lease(b"token", make_run(), b"{}")
    await owner.until("says")
    header = protocol.Reply(id=1, ok=True).packed()
    for _ in range(10):
        made.deliver(header, b"x" * (200 * 1024))
    ended = await owner.end()
    assert ended.reason == "protocol" and "does not read" in ended.detail


async def test_a_script_over_the_pipes_cap_is_refused_at_once(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nhang()")
    made, owner = await booted(max_frame_bytes=64 * 1024)
    made.lease(b"token", make_run(), b"x" * (129 * 1024))
    ended = await owner.end()
    assert ended.reason == "protocol" and str(129 * 1024) in ended.detail


@pytest.mark.parametrize(
    "program",
    [
        "ready(protocol=99)\nhang()",
        "frame(t='done', ms=0)\nhang()",
        "raise SystemExit(3)",
        "raw(b'no frame at all')",
    ],
)
async def test_a_boot_that_fails_is_gone_and_never_was_ready(program: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(program)
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert owner.events == ["gone"] and not made.was_ready


async def test_a_boot_that_hangs_is_killed_at_its_bound(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BOOT_BOUND_SECONDS", 0.1)
    fake_workers.run("hang()")
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert not made.was_ready and made.state is State.GONE
