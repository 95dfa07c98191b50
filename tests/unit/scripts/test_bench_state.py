"""`scripts/bench state` finds what is lost of each kind that brokers share, and finds nothing where nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from benchmarks.harness import SCRIPTS
from benchmarks.state.__main__ import wrong
from benchmarks.state.broker import Line
from benchmarks.state.kinds import KINDS
from benchmarks.state.stores import opened

TESTS = Path(__file__).parents[2]
BOUND_SECONDS = 120.0

LOSSES = [
    ("runs", "DELETE FROM runs"),
    ("runs", "DELETE FROM pieces WHERE kind = 'recording'"),
    ("runs", "UPDATE runs SET state = 'parked'"),
    ("outputs", "DELETE FROM outputs WHERE part = 'logs'"),
    ("outputs", "DELETE FROM output_pages WHERE page = 2"),
    ("pins", "DELETE FROM shared WHERE kind = 'pins'"),
    ("tokens", "DELETE FROM shared WHERE kind = 'tokens'"),
    ("logins", "DELETE FROM shared WHERE kind = 'logins'"),
    (
        "logins",
        "UPDATE shared SET body = (SELECT body FROM shared WHERE kind = 'pins') WHERE kind = 'logins'",
    ),
    ("shapes", "DELETE FROM observed"),
    ("shapes", "UPDATE observed SET samples = samples + 1"),
    ("quotas", "UPDATE counts SET used = used - 1"),
    ("quotas", "UPDATE counts SET used = used + 1"),
]
"""Holds what takes one thing away that was committed, or changes it, and the kind in which that is found."""


@pytest.mark.parametrize(("kind", "loss"), LOSSES)
async def test_what_is_lost_is_found(postgres_url: str, kind: str, loss: str) -> None:
    lines = list[Line]()
    async with opened(postgres_url, lives=True) as stores:
        for one, does in KINDS.items():
            texts = [text async for text in does.write(stores, "round", "a-0")]
            lines.append(Line(one, "a-0", len(texts), texts[-1]))
    assert await wrong(postgres_url, "round", lines) == []
    with psycopg.connect(postgres_url, options="-c search_path=cellblock") as connection:
        assert connection.execute(loss.encode()).rowcount > 0
    found = await wrong(postgres_url, "round", lines)
    assert found and all(fault.startswith(f"{kind}: ") for fault in found)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_only_begun_may_be_there_or_not(postgres_url: str, kind: str) -> None:
    begun = [Line(kind, "a-0")]
    assert await wrong(postgres_url, "round", begun) == []
    async with opened(postgres_url, lives=True) as stores:
        writing = KINDS[kind].write(stores, "round", "a-0")
        await anext(writing)
        assert await wrong(postgres_url, "round", begun) == []


@pytest.mark.slow
def test_kills_and_restarts_lose_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SCRIPTS), str(TESTS)))}
    command = [sys.executable, "-m", "benchmarks", "state", "--kills", "2", "--restarts", "1"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert "2 kills of a broker" in said[0] and " 0 writes were certain" not in said[0]
    assert len(said) == 3, "it tells of no fault"
