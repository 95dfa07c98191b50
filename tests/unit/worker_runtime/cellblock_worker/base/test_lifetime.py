"""Processes that die with their parent, also with one that dies before they have asked for it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from cellblock_worker.base import lifetime
from support.processes import gone
from support.waits import until

pytestmark = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")

BOUND = 20.0

PARENT = """
import subprocess, sys, time
from cellblock_worker.base import lifetime
child = subprocess.Popen(lifetime.dying_with_this(["sleep", "600"]), stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(600)
"""


async def test_a_child_dies_with_its_killed_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=subprocess.PIPE)
    child = psutil.Process(int(await parent.stdout.readline()))
    await until(lambda: child.name() == "sleep", "it has begun")
    parent.kill()
    await parent.wait()
    await gone([child])


@pytest.mark.parametrize("stop_in", ["setpriv", "sh"])
def test_a_child_whose_parent_died_before_it_asked_does_not_begin(stop_in: str) -> None:
    # The parent's pid is that of a process which is gone, just as if it had died in between.
    argv = lifetime.dying_with_this(["sleep", "600"])
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    guarded = [str(dead.pid) if part == str(os.getpid()) else part for part in argv]
    command = guarded if stop_in == "setpriv" else guarded[guarded.index("/bin/sh") :]
    assert subprocess.run(command, timeout=BOUND).returncode == 1


def test_arguments_and_descriptors_arrive_as_they_are() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"sent")
    os.close(writer)
    program = """
import json, os, sys
print(json.dumps([os.read(int(sys.argv[1]), 9).decode(), sys.argv[2:], os.getpid()]))
"""
    argv = [sys.executable, "-c", program, str(reader), "a b", "", "$HOME", "--", "'\""]
    with subprocess.Popen(
        lifetime.dying_with_this(argv), stdout=subprocess.PIPE, text=True, pass_fds=[reader]
    ) as process:
        os.close(reader)
        output, _ = process.communicate(timeout=BOUND)
    assert output.strip() == f'["sent", ["a b", "", "$HOME", "--", "\'\\""], {process.pid}]'


def test_the_shell_adds_nothing_to_an_empty_environment() -> None:
    argv = lifetime.dying_with_this(["/usr/bin/env"], empty_environment=True)
    done = subprocess.run(argv, env={"ONLY": "this"}, capture_output=True, text=True, timeout=BOUND)
    added = [line for line in done.stdout.splitlines() if not line.startswith(("ONLY=", "_="))]
    assert (done.returncode, added) == (0, [])


def test_no_new_privs_is_asked_for() -> None:
    argv = lifetime.dying_with_this(["grep", "NoNewPrivs", "/proc/self/status"], no_new_privs=True)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND)
    assert done.stdout.split() == ["NoNewPrivs:", "1"]


def test_without_setpriv_a_child_whose_parent_is_gone_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "setpriv", lambda: None)
    assert lifetime.dying_with_this(["sleep", "600"]) == ["sleep", "600"]
    setup = lifetime.child_setup()
    with subprocess.Popen(["sleep", "600"], preexec_fn=setup) as child:
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert subprocess.run(["sleep", "600"], preexec_fn=setup, timeout=BOUND).returncode == 1
