"""The soak's targets: what a neighbour met is in the rows of what was under way, and words follow the figures."""

from __future__ import annotations

from benchmarks.hostile.loop_watch import Stall
from benchmarks.hostile.neighbours import Visit
from soak.targets import ALL, ALONE, HOSTLESS, Seen, long_computing, rows
from soak.watch import Sample

MIB = 1 << 20
BEGAN = 1_000.0


def sample(at: float, mib: int) -> Sample:
    return Sample(at, mib * MIB, 30, 5, 40 * MIB, 20, 10, 0)


def visit(at: float, ms: float, *, failed: bool = False) -> Visit:
    return Visit(BEGAN + at, BEGAN + at + ms / 1000, failed)


def stall(at: float, ms: float, cpu_ms: float) -> Stall:
    return Stall(BEGAN + at + ms / 1000, ms / 1000, cpu_ms / 1000, 0.0)


LOADED = Seen(
    [visit(1, 20), visit(11, 90), visit(21, 30, failed=True), visit(31, 5_000)],
    [stall(1, 10, 10), stall(12, 150, 20), stall(31, 400, 120)],
    [sample(1, 100), sample(12, 399), sample(22, 401), sample(32, 120)],
    BEGAN,
)
ACTS = {
    "floods": [(BEGAN + 10, BEGAN + 13)],
    "nobody": [],
    "bombs": [(BEGAN + 0, BEGAN + 2), (BEGAN + 20, BEGAN + 40)],
    HOSTLESS: [(BEGAN + 30, BEGAN + 36)],
}


def test_each_row_has_what_was_under_way() -> None:
    alone = Seen([visit(-9, 15)], [], [], BEGAN)
    found = {row["beside"]: row for row in rows(alone, LOADED, ACTS)}
    assert list(found) == [ALONE, "floods", "bombs", HOSTLESS, ALL]
    assert [row["runs"] for row in found.values()] == [1, 1, 2, 1, 4]
    # A host that was dead is in its own row, and in the last.
    assert [row["p99_ms"] for row in found.values()] == [15.0, 90.0, 30.0, 5_000.0, 5_000.0]
    assert [row["stall_ms"] for row in found.values()] == [0.0, 150.0, 10.0, 400.0, 400.0]
    assert [row["computing_over"] for row in found.values()] == [0, 0, 0, 1, 1]
    words = {name: "".join(word[0] for word in row["targets"].values()) for name, row in found.items()}
    assert words == {ALONE: "mmm", "floods": "nnm", "bombs": "nmn", HOSTLESS: "nnm", ALL: "nnn"}


def test_only_what_the_loop_itself_computes_is_its_own() -> None:
    assert long_computing(LOADED.stalls) == [LOADED.stalls[2]]
    assert long_computing([stall(0, 5_000, 90)]) == []
