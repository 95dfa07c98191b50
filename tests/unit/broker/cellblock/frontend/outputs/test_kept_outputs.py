"""Kept outputs: who may read them, and that the disk never holds more than the caps."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.config.sections import OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs import kept_outputs
from cellblock.frontend.outputs.kept_outputs import Kept, KeptOutputs, NotKept, Output, keeping
from support.waits import until, within

MIB = 1024 * 1024

ANN = Owner("oauth:ann", "http session 1")
SAME_ANN = Owner("oauth:ann", "http session 2")
BOB = Owner("oauth:bob", "http session 1")

SETTINGS = OutputSettings(inline_bytes=1024, total_bytes=8 * MIB, expire_ms=3_600_000)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "PAGE_BYTES", 1024)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[KeptOutputs]:
    made = KeptOutputs(SETTINGS, tmp_path / "outputs")
    yield made
    await made.close()
    assert os.listdir(tmp_path / "outputs") == []  # noqa: PTH208 - a plain look


async def keep(kept: KeptOutputs, owner: Owner, text: str) -> Kept:
    (made,) = await kept.keep(owner, [Output("result", "application/json", text.encode())])
    return made


async def whole(kept: KeptOutputs, owner: Owner, one: Kept) -> str:
    return "".join([(await kept.read(owner, one.output_id, page))[1] for page in range(1, one.pages + 1)])


def files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("outputs/broker-*/*") if file.name != "lock"]


def sizes(folder: Path) -> list[int]:
    return [file.stat().st_size for file in files(folder)]


async def test_only_its_own_client_reads_and_lists(kept: KeptOutputs) -> None:
    one = await keep(kept, ANN, "private")
    assert await whole(kept, ANN, one) == "private"
    for stranger in (SAME_ANN, BOB):
        with pytest.raises(NotKept):
            await kept.read(stranger, one.output_id, 1)
        assert kept.list_for(stranger) == []
    assert kept.list_for(ANN) == [one]
    for page in (0, 2):
        with pytest.raises(IndexError):
            await kept.read(ANN, one.output_id, page)


async def test_ids_are_random_and_stay_in_the_folder(kept: KeptOutputs, tmp_path: Path) -> None:
    made = [await keep(kept, ANN, "x") for _ in range(50)]
    assert len({one.output_id for one in made}) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", one.output_id) for one in made)
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    for bad in ("../../secret", str(tmp_path / "secret"), "lock", "", "."):
        with pytest.raises(NotKept):
            await kept.read(ANN, bad, 1)


async def test_a_client_loses_its_own_oldest_first(kept: KeptOutputs, tmp_path: Path) -> None:
    of_bob = await keep(kept, BOB, "b" * 1_000)
    made = [await keep(kept, ANN, "a" * (MIB // 2)) for _ in range(7)]
    assert kept.list_for(ANN) == made[:2:-1]
    assert kept.list_for(BOB) == [of_bob]
    # Sessions are free to make, and are no way around the cap.
    await keep(kept, SAME_ANN, "a" * (MIB // 2))
    assert kept.list_for(ANN) == made[:3:-1]
    assert sum(sizes(tmp_path)) <= SETTINGS.client_bytes + 1_000


async def test_all_clients_together_stay_within_the_total(kept: KeptOutputs, tmp_path: Path) -> None:
    owners = [Owner(f"oauth:{number}", "c") for number in range(12)]
    for owner in owners:
        await keep(kept, owner, "x" * MIB)
        assert sum(sizes(tmp_path)) <= SETTINGS.total_bytes
    assert [bool(kept.list_for(owner)) for owner in owners] == [False] * 4 + [True] * 8


async def test_small_outputs_cannot_be_without_number(kept: KeptOutputs, tmp_path: Path) -> None:
    for _ in range(kept_outputs.MAX_KEPT + 10):
        await keep(kept, ANN, "x")
    assert len(kept.list_for(ANN)) == len(sizes(tmp_path)) == kept_outputs.MAX_KEPT


async def test_what_is_larger_than_all_that_is_allowed_is_refused(kept: KeptOutputs, tmp_path: Path) -> None:
    one = await keep(kept, ANN, "old")
    large = Output("logs", "x", b"x" * (SETTINGS.client_bytes + 1))
    with pytest.raises(OSError, match=r"a quarter of outputs\.total_bytes"):
        await kept.keep(ANN, [Output("result", "x", b"small"), large])
    assert kept.list_for(ANN) == [one]
    # The thread removes in turn: a read comes behind.
    await whole(kept, ANN, one)
    assert len(sizes(tmp_path)) == 1


async def test_nothing_is_left_of_what_is_cancelled(
    kept: KeptOutputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    write = kept_outputs.write_within

    def slow(*arguments: Any) -> None:
        began.set()
        assert go_on.wait(20)
        write(*arguments)

    monkeypatch.setattr(kept_outputs, "write_within", slow)
    work = asyncio.create_task(keep(kept, ANN, "x"))
    await until(began.is_set, "the thread writes")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    go_on.set()
    await whole(kept, ANN, await keep(kept, ANN, "y"))
    assert len(kept.list_for(ANN)) == len(sizes(tmp_path)) == 1


async def test_a_slow_disk_has_its_bound(kept: KeptOutputs, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(kept_outputs, "DISK_SECONDS", 0.05)
    monkeypatch.setattr(kept_outputs, "write_within", lambda *_: go_on.wait(20))
    try:
        with pytest.raises(TimeoutError):
            await keep(kept, ANN, "x")
    finally:
        go_on.set()
    assert kept.list_for(ANN) == []


async def test_a_file_that_someone_removed_is_an_output_that_has_gone(
    kept: KeptOutputs, tmp_path: Path
) -> None:
    one = await keep(kept, ANN, "x")
    (file,) = files(tmp_path)
    assert file.name == one.output_id
    file.unlink()
    with pytest.raises(NotKept):
        await kept.read(ANN, one.output_id, 1)
    assert kept.list_for(ANN) == []


async def test_a_link_in_an_outputs_place_is_not_read_and_not_removed(
    kept: KeptOutputs, tmp_path: Path
) -> None:
    """As somebody would plant it who wants what another file holds, or to have it removed at its end."""
    one, other = await keep(kept, ANN, "x"), await keep(kept, BOB, "bob's")
    (tmp_path / "secret").write_text("a secret", encoding="utf-8")
    for target in (tmp_path / "secret", files(tmp_path)[0].parent / other.output_id):
        place = files(tmp_path)[0].parent / one.output_id
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        with pytest.raises(NotKept):
            await kept.read(ANN, one.output_id, 1)
        assert place.is_symlink()
        place.unlink()
        one = await keep(kept, ANN, "x")
    assert (tmp_path / "secret").read_text(encoding="utf-8") == "a secret"
    assert await whole(kept, BOB, other) == "bob's"


async def test_what_is_planted_in_the_folder_is_nobodys_output(kept: KeptOutputs, tmp_path: Path) -> None:
    """There is no index on the disk: a name is an id only for the client that this process has given it to."""
    one = await keep(kept, ANN, "x")
    (file,) = files(tmp_path)
    for name in ("A" * 32, f"{one.output_id}.json", "index.json"):
        (file.parent / name).write_text('{"owner": "oauth:bob"}', encoding="utf-8")
        with pytest.raises(NotKept):
            await kept.read(BOB, name, 1)
    assert kept.list_for(BOB) == [] and kept.list_for(ANN) == [one]
    for name in (f"{one.output_id}.json", "index.json"):
        (file.parent / name).unlink()


async def test_a_folder_that_is_swapped_for_another_changes_nothing(
    kept: KeptOutputs, tmp_path: Path
) -> None:
    """Outputs are read, written and removed in the folder that was made, whatever has its name now."""
    one = await keep(kept, ANN, "x")
    folder = files(tmp_path)[0].parent
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / one.output_id).write_text("planted", encoding="utf-8")
    folder.rename(tmp_path / "aside")
    folder.symlink_to(tmp_path / "other")
    assert await whole(kept, ANN, one) == "x"
    two = await keep(kept, ANN, "y")
    assert (tmp_path / "aside" / two.output_id).read_text(encoding="utf-8") == "y"
    assert [path.name for path in (tmp_path / "other").iterdir()] == [one.output_id]
    folder.unlink()
    (tmp_path / "aside").rename(folder)


async def test_it_expires(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"expire_ms": 100})
    async with keeping(settings, tmp_path) as kept:
        assert kept is not None
        made = [await keep(kept, owner, "x") for owner in (ANN, BOB)]
        await until(lambda: not sizes(tmp_path), "expired files are removed")
        for owner, one in zip((ANN, BOB), made, strict=True):
            assert kept.list_for(owner) == []
            with pytest.raises(NotKept):
                await kept.read(owner, one.output_id, 1)
        # The timer starts again for the next.
        await keep(kept, ANN, "x")
        await until(lambda: not sizes(tmp_path), "expired files are removed")


async def test_daemons_that_share_a_state_folder_leave_each_other_alone(tmp_path: Path) -> None:
    async with keeping(SETTINGS, tmp_path) as first:
        assert first is not None
        one = await keep(first, ANN, "x")
        async with keeping(SETTINGS, tmp_path) as second, keeping(OutputSettings(), tmp_path) as none:
            assert none is None
            assert second is not None
            with pytest.raises(NotKept):
                await second.read(ANN, one.output_id, 1)
        assert await whole(first, ANN, one) == "x"


async def test_off_makes_no_folder(tmp_path: Path) -> None:
    async with keeping(OutputSettings(), tmp_path) as kept:
        assert kept is None
    assert not (tmp_path / "outputs").exists()


@given(st.text(st.sampled_from("aé€𝄞"), max_size=3_000))
async def test_pages_are_the_whole(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = KeptOutputs(SETTINGS, Path(folder) / "outputs")
        try:
            one = await keep(kept, ANN, text)
            pages = [(await kept.read(ANN, one.output_id, page))[1] for page in range(1, one.pages + 1)]
            assert "".join(pages) == text
            assert all(len(page.encode()) <= 1024 + 3 for page in pages)
        finally:
            await kept.close()


HUNG = """
import asyncio, pathlib, sys, threading
from cellblock.config.sections import OutputSettings
from cellblock.frontend.outputs import kept_outputs
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept_outputs import Output, keeping

kept_outputs.CLOSE_SECONDS = 0.2
kept_outputs.DISK_SECONDS = 0.1
kept_outputs.write_within = lambda *_: threading.Event().wait()


async def main():
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    async with keeping(OutputSettings(inline_bytes=1024), pathlib.Path(sys.argv[1])) as kept:
        try:
            await kept.keep(Owner("a", "a"), [Output("result", "text/plain", b"x")])
        except TimeoutError:
            pass
        beating = asyncio.create_task(beat())
        await asyncio.sleep(0)
    print("closed, and the loop went on:", beats > 3)
    beating.cancel()


asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_disk_that_hangs_holds_neither_the_loop_nor_the_exit(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HUNG, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await within(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (said.decode().strip(), process.returncode) == ("closed, and the loop went on: True", 0)
    # What was left behind goes with the next start.
    (left,) = (tmp_path / "outputs").glob("broker-*")
    async with keeping(SETTINGS, tmp_path):
        assert not left.exists()
