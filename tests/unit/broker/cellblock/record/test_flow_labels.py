"""What principals' models have read is kept for all brokers of a state, until a person resets it or it expires."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.base.store import LocalStore
from cellblock.record import flow_labels
from cellblock.record.flow_labels import EXPIRY_SECONDS, FlowLabels
from cellblock.run.flows.labels import NOTHING, STRICTEST, Label
from support.shared_rows import AnyStore

PRIVATE, UNTRUSTED = Label(frozenset()), Label(None, False)


@pytest.fixture
def labels(tmp_path: Path) -> FlowLabels:
    return FlowLabels(LocalStore(tmp_path))


async def test_what_was_read_is_joined_and_known_to_another_broker(
    store_of_broker: Callable[[], AnyStore], tmp_path: Path
) -> None:
    labels, other = FlowLabels(store_of_broker()), FlowLabels(store_of_broker())
    assert await other.of("token") == NOTHING
    await labels.read("token", NOTHING)
    assert not (tmp_path / "flows").exists() and labels.all() == []
    await labels.read("token", PRIVATE)
    await other.read("token", UNTRUSTED)
    assert await labels.of("token") == await other.of("token") == STRICTEST
    assert await labels.of("stdio:x") == NOTHING
    # Another process resets it, and knows of no connection.
    assert FlowLabels(store_of_broker()).reset("token") == ["token"]
    assert await labels.of("token") == await other.of("token") == NOTHING
    await labels.read("token", PRIVATE)
    assert await other.of("token") == PRIVATE


async def test_two_that_read_at_once_join(store_of_broker: Callable[[], AnyStore]) -> None:
    both = [FlowLabels(store_of_broker()) for _ in range(2)]
    await asyncio.gather(both[0].read("a", PRIVATE), both[1].read("a", UNTRUSTED))
    assert [await one.of("a") for one in both] == [STRICTEST, STRICTEST]


async def test_what_a_run_has_seen_counts_before_it_ends(labels: FlowLabels) -> None:
    labels.rises("a", PRIVATE)
    assert await labels.of("a") == PRIVATE
    await labels.close()
    assert [one.label for one in labels.all()] == [PRIVATE] and await labels.of("a") == PRIVATE


async def test_a_person_resets_it(labels: FlowLabels, tmp_path: Path) -> None:
    for reader in ("token", "embedding team one", "stdio:x"):
        await labels.read(reader, PRIVATE)
    other = FlowLabels(LocalStore(tmp_path))
    assert other.reset("embedding") == ["embedding team one"]
    assert other.reset("token") == ["token"] and other.reset("token") == []
    assert [await labels.of(one) for one in ("token", "stdio:x")] == [NOTHING, PRIVATE]
    assert other.reset() == ["stdio:x"]


async def test_it_expires_when_nothing_was_read_for_long(
    labels: FlowLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(flow_labels.time, "time", lambda: now)
    for _ in range(2):
        await labels.read("a", PRIVATE)
        now += EXPIRY_SECONDS - 1
        assert await labels.of("a") == PRIVATE
    now += 2
    assert await labels.of("a") == NOTHING
    await labels.read("a", UNTRUSTED)
    assert await labels.of("a") == UNTRUSTED


async def test_what_cannot_be_read_is_the_strictest_until_it_is_reset(
    labels: FlowLabels, tmp_path: Path
) -> None:
    await labels.read("a", UNTRUSTED)
    (file,) = (tmp_path / "flows").iterdir()
    file.write_bytes(b'{"reader": "a"}')
    assert await labels.of("a") == STRICTEST
    await labels.read("a", UNTRUSTED)
    assert len(labels.reset()) == 1 and await labels.of("a") == UNTRUSTED


async def test_what_cannot_be_written_counts_here(labels: FlowLabels, tmp_path: Path) -> None:
    (tmp_path / "flows").write_text("in the way")
    await labels.read("a", PRIVATE)
    assert PRIVATE.within(await labels.of("a"))
