"""Kept outputs in a file: who may read them, that it never holds more than the caps, and that they go."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.base.errors import ConfigError
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.state_dir import OUTPUTS
from cellblock.base.store import LocalStore
from cellblock.serve.client import Owner
from cellblock.serve.outputs import kept_outputs
from cellblock.serve.outputs.kept import Kept, NotKept, Output
from cellblock.serve.outputs.kept_outputs import KeptOutputs, keeping
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
    made = KeptOutputs(SETTINGS, LocalStore(tmp_path))
    yield made
    await made.close()
    assert sizes(tmp_path) == []


async def keep(kept: KeptOutputs, owner: Owner, text: str) -> Kept:
    (made,) = await kept.keep(owner, [Output("result", "application/json", text.encode())])
    return made


async def whole(kept: KeptOutputs, owner: Owner, one: Kept) -> str:
    return "".join([(await kept.read(owner, one.output_id, page))[1] for page in range(1, one.pages + 1)])


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def sizes(folder: Path) -> list[int]:
    """Of all that is in the file."""
    with contextlib.closing(sqlite3.connect(folder / OUTPUTS)) as file:
        rows = "SELECT sum(length(body)) FROM outputs JOIN output_pages ON output = id GROUP BY id"
        return [size for (size,) in file.execute(rows)]


async def test_ids_are_random(kept: KeptOutputs) -> None:
    made = [await keep(kept, ANN, "x") for _ in range(50)]
    assert len({one.output_id for one in made}) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", one.output_id) for one in made)


async def test_a_client_loses_its_own_oldest_first(kept: KeptOutputs, tmp_path: Path) -> None:
    of_bob = await keep(kept, BOB, "b" * 1_000)
    made = [await keep(kept, ANN, "a" * (MIB // 2)) for _ in range(7)]
    assert kept.list_for(ANN) == made[:2:-1]
    assert kept.list_for(BOB) == [of_bob]
    # Sessions are free to make, and are no way around the cap.
    await keep(kept, SAME_ANN, "a" * (MIB // 2))
    assert kept.list_for(ANN) == made[:3:-1]
    assert sum(sizes(tmp_path)) <= SETTINGS.client_bytes + 1_000


async def test_all_front_ends_together_stay_within_the_total(kept: KeptOutputs, tmp_path: Path) -> None:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as other:
        assert other is not None
        owners = [Owner(f"oauth:{number}", "c") for number in range(12)]
        for number, owner in enumerate(owners):
            await keep((kept, other)[number % 2], owner, "x" * MIB)
            assert sum(sizes(tmp_path)) <= SETTINGS.total_bytes
        found = [await (kept, other)[number % 2].listed(owner) for number, owner in enumerate(owners)]
        assert [bool(one) for one in found] == [False] * 4 + [True] * 8
    assert (tmp_path / OUTPUTS).stat().st_size < 2 * SETTINGS.total_bytes


async def test_what_is_larger_than_all_that_is_allowed_is_refused(kept: KeptOutputs, tmp_path: Path) -> None:
    one = await keep(kept, ANN, "old")
    large = Output("logs", "x", b"x" * (SETTINGS.client_bytes + 1))
    with pytest.raises(OSError, match=r"a quarter of outputs\.total_bytes"):
        await kept.keep(ANN, [Output("result", "x", b"small"), large])
    assert kept.list_for(ANN) == [one]
    assert len(sizes(tmp_path)) == 1


async def test_a_slow_disk_has_its_bound(kept: KeptOutputs, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(kept_outputs, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(kept, "_write", lambda *_: go_on.wait(20))
    try:
        with pytest.raises(TimeoutError):
            await keep(kept, ANN, "x")
    finally:
        go_on.set()
    assert kept.list_for(ANN) == []
    monkeypatch.undo()
    await whole(kept, ANN, await keep(kept, ANN, "y"))


async def test_the_file_is_private_and_gives_the_disk_back(tmp_path: Path) -> None:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as kept:
        assert kept is not None
        await keep(kept, ANN, "the secret of Ann" + "x" * MIB)
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files(tmp_path))
    (file,) = files(tmp_path)
    assert file.stat().st_size < MIB // 4 and b"secret" not in file.read_bytes()


async def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / OUTPUTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        async with keeping(SETTINGS, LocalStore(tmp_path)):
            pass
    assert (tmp_path / "elsewhere").read_bytes() == b""


async def test_it_expires(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"expire_ms": 100})
    async with keeping(settings, LocalStore(tmp_path)) as kept:
        assert kept is not None
        told: list[bool] = []
        for _ in range(2):
            made = [await keep(kept, owner, "x") for owner in (ANN, BOB)]
            kept.watch(lambda: told.append(True))
            await until(lambda: not sizes(tmp_path), "expired outputs are removed")
            for owner, one in zip((ANN, BOB), made, strict=True):
                assert kept.list_for(owner) == []
                with pytest.raises(NotKept):
                    await kept.read(owner, one.output_id, 1)
        await until(lambda: told, "who watches is told")


async def test_daemons_that_share_a_state_folder_leave_each_other_alone(tmp_path: Path) -> None:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as first:
        assert first is not None
        one = await keep(first, ANN, "x")
        async with (
            keeping(SETTINGS, LocalStore(tmp_path)) as second,
            keeping(OutputSettings(), LocalStore(tmp_path)) as none,
        ):
            assert none is None
            assert second is not None
            with pytest.raises(NotKept):
                await second.read(ANN, one.output_id, 1)
            assert await second.listed(ANN) == []
        assert await whole(first, ANN, one) == "x"


async def test_what_a_killed_daemon_has_left_goes_also_where_nothing_is_kept(tmp_path: Path) -> None:
    killed = KeptOutputs(SETTINGS.model_copy(update={"expire_ms": 100}), LocalStore(tmp_path))
    await keep(killed, ANN, "x")
    killed._leave = lambda: None
    await killed.close()
    assert sizes(tmp_path) == [1]
    async with keeping(OutputSettings(expire_ms=100), LocalStore(tmp_path)):
        await until(lambda: not sizes(tmp_path), "what is left is removed")


async def test_off_makes_no_file(tmp_path: Path) -> None:
    async with keeping(OutputSettings(), LocalStore(tmp_path)) as kept:
        assert kept is None
    assert files(tmp_path) == []


@given(st.text(st.sampled_from("aé€𝄞"), max_size=3_000))
async def test_pages_are_the_whole(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = KeptOutputs(SETTINGS, LocalStore(Path(folder)))
        try:
            one = await keep(kept, ANN, text)
            pages = [(await kept.read(ANN, one.output_id, page))[1] for page in range(1, one.pages + 1)]
            assert "".join(pages) == text
            assert all(len(page.encode()) <= 1024 + 3 for page in pages)
        finally:
            await kept.close()


HUNG = """
import asyncio, pathlib, sys, threading
from cellblock.base.store import LocalStore
from cellblock.base.settings.sections import OutputSettings
from cellblock.serve.client import Owner
from cellblock.serve.outputs import kept_outputs
from cellblock.serve.outputs.kept import Output

kept_outputs.CLOSE_SECONDS = 0.2
kept_outputs.ASK_SECONDS = 0.1
kept_outputs.KeptOutputs._write = lambda *_: threading.Event().wait()


async def main():
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    kept = kept_outputs.KeptOutputs(OutputSettings(inline_bytes=1024), LocalStore(pathlib.Path(sys.argv[1])))
    try:
        await kept.keep(Owner("a", "a"), [Output("result", "text/plain", b"x")])
    except TimeoutError:
        pass
    beating = asyncio.create_task(beat())
    await kept.close()
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
