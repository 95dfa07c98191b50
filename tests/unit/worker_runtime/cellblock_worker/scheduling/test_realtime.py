"""Real-time priority: for the threads that are named and nothing that they start, and given back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import pytest
import zmq

from cellblock_worker.scheduling import realtime
from cellblock_worker.scheduling.realtime import OWN_PRIORITY, Claim
from support.waits import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has it")

RESET_ON_FORK = getattr(os, "SCHED_RESET_ON_FORK", 0)
FIRST = getattr(os, "SCHED_RR", 0) | RESET_ON_FORK


def may_claim() -> bool:
    claim = Claim([threading.get_native_id()])
    claim.give_back()
    return claim.refused is None


granted = pytest.mark.skipif(not may_claim(), reason="this machine grants no real-time priority")


def policy_in_a_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(threading.get_native_id())))
    thread.start()
    thread.join()
    return found[0]


@granted
def test_threads_go_first_and_hand_nothing_on_until_it_is_given_back() -> None:
    mine = threading.get_native_id()
    claim = Claim([mine])
    try:
        assert claim.held and claim.refused is None
        assert os.sched_getscheduler(mine) == FIRST
        assert os.sched_getparam(mine).sched_priority == OWN_PRIORITY
        assert policy_in_a_thread() == os.SCHED_OTHER
        tell = "import os; print(os.sched_getscheduler(0))"
        child = subprocess.run([sys.executable, "-c", tell], capture_output=True, timeout=30, check=True)
        assert int(child.stdout) == os.SCHED_OTHER
    finally:
        claim.give_back()
    assert os.sched_getscheduler(mine) & ~RESET_ON_FORK == os.SCHED_OTHER
    assert not claim.held


@granted
def test_a_thread_stays_first_until_its_last_claim_is_given_back_and_is_then_as_before() -> None:
    def claimed_twice() -> None:
        mine = threading.get_native_id()
        os.sched_setscheduler(mine, os.SCHED_BATCH, os.sched_param(0))
        one, other = Claim([mine]), Claim([mine])
        one.give_back()
        one.give_back()
        seen.append(os.sched_getscheduler(mine))
        other.give_back()
        seen.append(os.sched_getscheduler(mine) & ~RESET_ON_FORK)

    seen: list[int] = []
    thread = threading.Thread(target=claimed_twice)
    thread.start()
    thread.join()
    assert seen == [FIRST, os.SCHED_BATCH]


@granted
def test_what_has_real_time_priority_already_keeps_its_own() -> None:
    def claimed() -> None:
        mine = threading.get_native_id()
        os.sched_setscheduler(mine, os.SCHED_FIFO, os.sched_param(1))
        claim = Claim([mine])
        claim.give_back()
        seen.append((claim.refused, os.sched_getscheduler(mine)))

    seen: list[tuple[str | None, int]] = []
    thread = threading.Thread(target=claimed)
    thread.start()
    thread.join()
    assert seen == [(None, os.SCHED_FIFO)]


@granted
async def test_the_threads_of_a_loop_are_its_own_and_those_of_zeromq() -> None:
    over = threading.Event()
    bystander = threading.Thread(target=over.wait)
    bystander.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    try:
        context.socket(zmq.DEALER).close()
        # An I/O thread and the reaper of sockets.
        await until(lambda: len(realtime.loop_threads()) >= 3, "ZeroMQ's threads run")
        claim = Claim(realtime.loop_threads())
        first = {thread for thread in realtime.threads_of() if os.sched_getscheduler(thread) == FIRST}
        claim.give_back()
        assert len(first) >= 3 and threading.get_native_id() in first
        assert bystander.native_id not in first
    finally:
        over.set()
        context.destroy()
        bystander.join()


async def test_no_threads_is_no_claim_and_one_that_has_ended_is_passed_over() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    ended = thread.native_id
    assert ended is not None
    await until(lambda: ended not in realtime.threads_of(), "the kernel has no such thread any more")
    for threads in ([], [ended]):
        claim = Claim(threads)
        assert not claim.held and claim.refused is None


TRY = """
import threading
from cellblock_worker.scheduling.realtime import Claim
claim = Claim([threading.get_native_id()])
print(claim.held, claim.refused)
"""


@pytest.mark.skipif(
    shutil.which("prlimit") is None or shutil.which("setpriv") is None,
    reason="needs prlimit and setpriv (util-linux)",
)
def test_what_is_refused_says_what_it_takes() -> None:
    without = (
        ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "--"] if os.geteuid() == 0 else []
    )
    done = subprocess.run(
        ["prlimit", "--rtprio=0", "--", *without, sys.executable, "-c", TRY],
        capture_output=True,
        text=True,
        timeout=30,
    )
    held, _, refused = done.stdout.strip().partition(" ")
    assert held == "False", done.stderr
    assert refused.startswith("real-time priority: Operation not permitted; it takes a limit of 2 on")
    assert "LimitRTPRIO=" in refused
