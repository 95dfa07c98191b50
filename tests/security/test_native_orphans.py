"""A worker that was taken over, and means to outlive its host or to stop others' boots."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from cellblock import Broker, Observer
from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.confinement.orphans import end_orphans
from cellblock_worker.wire.frames import encode_frame, pack_header
from security.native.harness import Native, attack, steps
from support.entries import settings
from support.processes import alive, command_line, workers_of
from support.waits import until, within
from support.worker_owner import make_run, script

STAY = [("prctl", 1, 0, 0, 0, 0), "say stays", ("sleep", 600_000)]
"""It takes back that it dies with its parent, and does not look at its input any more."""

F_SETLEASE, F_WRLCK = 1024, 1


@pytest.mark.parametrize("kill_launcher", [False, True])
async def test_one_that_takes_back_pdeathsig_does_not_outlive_its_host(
    kill_launcher: bool, native_hosts: Native, tmp_path: Path
) -> None:
    pool = {"warm": 1, "max_warm": 1, "capacity": 2}
    # With the journal off: its run does not begin anew at the next host.
    async with Broker(settings(tmp_path, isolation="required", pool=pool, journal="off")) as broker:
        stays = asyncio.Event()
        run = asyncio.create_task(broker.run(steps(*STAY), observer=Observer(on_log=lambda _: stays.set())))
        await within(stays.wait())
        assert broker.host_pid is not None
        host = psutil.Process(broker.host_pid)
        workers = workers_of(host.pid)
        if kill_launcher:
            # Only the next host can find it then.
            # What it starts is a copy of it for a moment, and younger.
            copies = [child for child in host.children() if "launcher.py" in " ".join(command_line(child))]
            launcher = min(copies, key=lambda child: child.create_time())
            host.suspend()
            launcher.kill()
        host.kill()
        await within(run)
        await until(lambda: not any(map(alive, workers)), f"the end of {workers}")


async def test_the_next_host_finds_one_where_no_launcher_and_no_cgroup_has_ended_it(
    native_workers: Native,
) -> None:
    """Started by hand, so that nobody else watches over it, and without the filter, which refuses its prctl."""
    launch = confinement.launch(64)
    at = launch.command.index("--seccomp")
    argv = [*launch.command[:at], *launch.command[at + 2 :]]
    process = subprocess.Popen(  # noqa: ASYNC220 - a test
        argv,
        env=confinement.WORKER_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=launch.fds,
    )
    launch.close()
    assert process.stdin and process.stdout
    run = make_run()
    start = {"t": "start", "log_bytes": run.log_bytes, "message_bytes": run.message_bytes}
    process.stdin.write(encode_frame(pack_header(start), script(steps(*STAY))))
    process.stdin.flush()
    said = b""
    while b"stays" not in said:
        said += os.read(process.stdout.fileno(), 1000)
        assert process.poll() is None
    inner = bubblewrap.inner_pid(process.pid)
    assert inner is not None
    worker = psutil.Process(inner)
    assert inner not in end_orphans()
    process.kill()
    process.wait()
    await until(lambda: worker.ppid() != process.pid, "its parent's end")
    assert alive(worker)
    assert inner in end_orphans()
    await until(lambda: not alive(worker), "its end")
    process.stdin.close()
    process.stdout.close()


async def test_no_file_that_others_boot_from_can_be_leased(native_workers: Native) -> None:
    prefix = confinement.launch(64).command
    inside = [prefix[at + 2] for at, word in enumerate(prefix) if word == "--ro-bind"]
    files = [path for path in inside if path not in (bubblewrap.BUNDLE_INSIDE, "/native")]
    files += [
        f"{bubblewrap.BUNDLE_INSIDE}/{name}" for name in (confinement.BOOT_SCRIPT, confinement.IMPORT_MAP)
    ]
    assert len(files) >= 5
    lines: list[tuple[object, ...]] = []
    for number, file in enumerate(files):
        lines.append(("openat", -100, file.encode(), os.O_RDONLY))
        lines.append(("fcntl", f"${2 * number}", F_SETLEASE, F_WRLCK))
    said = await attack(*lines)
    for file, opened, leased in zip(files, said[::2], said[1::2], strict=True):
        assert opened > 2, file
        assert leased < 0, f"{file} was leased"
    # It has all of them open still, and another one boots.
    assert await attack("getpid") == [1]
