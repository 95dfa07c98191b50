"""What binds a process to its first run."""

from __future__ import annotations

from cellblock_worker.wire import protocol
from cellblock_worker.worker.reuse import CPU_SECONDS, GROWTH_BYTES, Bond, ReuseBounds
from cellblock_worker.worker.usage import Usage

BOUNDS = ReuseBounds(max_runs=3, max_age_ms=3_600_000, idle_ms=1, principal_warm=1)


def _run(key: str = "a", *, memory: int = 100, cpu: int = 100) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=cpu, memory_bytes=memory, log_bytes=1, message_bytes=1, key=key)


def test_only_runs_of_its_key_fit_and_none_with_higher_limits() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    assert bond.fits(_run(memory=50, cpu=50))
    assert not bond.fits(_run("b"))
    assert not bond.fits(_run(memory=101))
    assert not bond.fits(_run(cpu=101))


def test_it_has_so_many_runs_and_no_more() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    lasting = []
    for served in range(4):
        bond.served = served
        lasting.append(bond.lasts(BOUNDS))
    assert lasting == [True, True, False, False]


def test_it_has_them_for_so_long_and_no_longer() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    bond.since -= 3_601
    assert not bond.lasts(BOUNDS)


def test_it_may_neither_grow_nor_compute_without_end() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1, data_bytes=1000))
    assert bond.within(Usage(1.0 + CPU_SECONDS, 1, data_bytes=1000 + GROWTH_BYTES))
    assert not bond.within(Usage(1.0, 1, data_bytes=1001 + GROWTH_BYTES))
    assert not bond.within(Usage(1.1 + CPU_SECONDS, 1, data_bytes=1000))
