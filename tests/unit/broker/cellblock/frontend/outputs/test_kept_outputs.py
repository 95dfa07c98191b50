"""Kept outputs: who may read them, that there are never more than the caps allow, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.base.own_folders import OwnFolder
from cellblock.base.postgresql import PostgresServer
from cellblock.base.shared_state import SharedState
from cellblock.base.state_dir import OUTPUT_FILES
from cellblock.base.store import LocalStore
from cellblock.config.sections import MIB, OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs import kept_outputs
from cellblock.frontend.outputs.kept import Kept, NotKept, Output
from cellblock.frontend.outputs.kept_outputs import TABLES, KeptOutputs, keeping
from support.postgresql import Postgres
from support.shared_rows import KEY, AnyStore
from support.waits import until, until_found, within

ANN, SAME_ANN, BOB = Owner("token:ann", "one"), Owner("token:ann", "two"), Owner("token:bob", "one")

SETTINGS = OutputSettings(
    inline_bytes=1024, page_bytes=1024, client_bytes=2 * MIB, total_bytes=3 * MIB, expire_ms=3_600_000
)

Made = Callable[..., KeptOutputs]


@pytest.fixture
async def make(store_of_broker: Callable[[], AnyStore]) -> AsyncIterator[Made]:
    """Makes one more front-end's outputs, in files or where brokers share them."""
    async with contextlib.AsyncExitStack() as stack:

        def made(settings: OutputSettings = SETTINGS) -> KeptOutputs:
            kept = KeptOutputs(settings, store_of_broker())
            stack.push_async_callback(kept.close)
            return kept

        yield made


async def keep(kept: KeptOutputs, owner: Owner, text: str) -> Kept:
    (made,) = await kept.keep(owner, [Output("result", "application/json", text.encode())])
    return made


async def whole(kept: KeptOutputs, owner: Owner, output_id: str) -> str:
    one, text = await kept.read(owner, output_id, 1)
    rest = [(await kept.read(owner, output_id, page))[1] for page in range(2, one.pages + 1)]
    return "".join([text, *rest])


def ids(found: list[Kept]) -> list[str]:
    return [one.output_id for one in found]


def used_bytes(folder: Path) -> int:
    database = LocalStore(folder).database(TABLES)
    ((size,),) = database.rows("SELECT coalesce(sum(size), 0) FROM outputs")
    database.close()
    return size


async def test_only_its_own_client_reads_and_lists(make: Made) -> None:
    kept = make()
    one = await keep(kept, ANN, "private")
    assert await whole(kept, ANN, one.output_id) == "private"
    for stranger in (SAME_ANN, BOB, Owner("token:\udcff\0", "one")):
        with pytest.raises(NotKept):
            await kept.read(stranger, one.output_id, 1)
        assert await kept.listed(stranger) == kept.list_for(stranger) == []
    assert ids(await kept.listed(ANN)) == ids(kept.list_for(ANN)) == [one.output_id]
    for page in (0, 2):
        with pytest.raises(IndexError):
            await kept.read(ANN, one.output_id, page)


async def test_ids_are_random_and_name_nothing_else(make: Made, tmp_path: Path) -> None:
    kept = make()
    made = [await keep(kept, ANN, "x") for _ in range(50)]
    assert len({one.output_id for one in made}) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", one.output_id) for one in made)
    for bad in ("../../secret", str(tmp_path), "lock", "", ".", "\0", "\udcff"):
        with pytest.raises(NotKept):
            await kept.read(ANN, bad, 1)


async def test_the_oldest_go_first(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = make()
    of_bob = await keep(kept, BOB, "b")
    half = "a" * (MIB // 2)
    made = [await keep(kept, ANN, half) for _ in range(5)]
    assert ids(await kept.listed(ANN)) == ids(made[:0:-1])
    # Sessions are free to make, and are no way around the cap.
    await keep(kept, SAME_ANN, half)
    assert ids(await kept.listed(ANN)) == ids(made[:1:-1])
    assert ids(await kept.listed(BOB)) == [of_bob.output_id]
    # All together stay within the total.
    await keep(kept, Owner("token:eve", "one"), half * 3)
    assert await kept.listed(BOB) == []
    large = Output("logs", "x", b"x" * (SETTINGS.client_bytes + 1))
    with pytest.raises(OSError, match="client_bytes"):
        await kept.keep(BOB, [Output("result", "x", b"small"), large])
    assert await kept.listed(BOB) == []
    monkeypatch.setattr(kept_outputs, "MAX_KEPT", 3)
    small = [await keep(kept, BOB, str(number)) for number in range(5)]
    assert sorted(ids(await kept.listed(BOB))) == sorted(ids(small[2:]))


async def test_nothing_is_left_of_what_is_cancelled(
    make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = make()
    began, go_on = threading.Event(), threading.Event()
    write = KeptOutputs._write

    def slow(*arguments: Any) -> None:
        began.set()
        assert go_on.wait(20)
        write(*arguments)

    monkeypatch.setattr(KeptOutputs, "_write", slow)
    work = asyncio.create_task(keep(kept, ANN, "x"))
    await until(began.is_set, "the thread writes")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    go_on.set()
    one = await keep(kept, ANN, "y")
    assert ids(await kept.listed(ANN)) == [one.output_id]


async def test_a_slow_disk_has_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptOutputs(SETTINGS, LocalStore(tmp_path))
    go_on = threading.Event()
    monkeypatch.setattr(kept_outputs, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(KeptOutputs, "_write", lambda *_: go_on.wait(20))
    try:
        with pytest.raises(TimeoutError):
            await keep(kept, ANN, "x")
    finally:
        go_on.set()
    assert kept.list_for(ANN) == []
    await kept.close()


async def test_what_has_expired_is_gone(make: Made) -> None:
    kept = make(SETTINGS.model_copy(update={"expire_ms": 200}))
    one = await keep(kept, ANN, "soon")

    async def gone() -> bool:
        try:
            await kept.read(ANN, one.output_id, 1)
        except NotKept:
            return True
        return False

    await until_found(gone, "it has expired", pause=0.05)
    assert await kept.listed(ANN) == kept.list_for(ANN) == []


async def test_the_disk_has_nothing_of_what_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "TIDY_SECONDS", 0.05)
    soon = SETTINGS.model_copy(update={"expire_ms": 100})
    async with keeping(soon, LocalStore(tmp_path)) as kept:
        assert kept is not None
        await keep(kept, ANN, "x" * MIB)
        assert used_bytes(tmp_path) == MIB
        await until(lambda: used_bytes(tmp_path) == 0, "what has expired is removed")
    async with keeping(SETTINGS, LocalStore(tmp_path)) as kept:
        assert kept is not None
        await keep(kept, ANN, "x" * MIB)
    assert used_bytes(tmp_path) == 0
    assert (tmp_path / TABLES.file).stat().st_size < MIB // 2
    assert (tmp_path / TABLES.file).stat().st_mode & 0o777 == 0o600


async def test_daemons_that_share_a_state_folder_leave_each_other_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    async with keeping(SETTINGS, store) as first:
        assert first is not None
        one = await keep(first, ANN, "x")
        async with keeping(SETTINGS, store) as second, keeping(OutputSettings(), store) as none:
            assert none is None and second is not None
            assert await second.listed(ANN) == []
            with pytest.raises(NotKept):
                await second.read(ANN, one.output_id, 1)
        assert await whole(first, ANN, one.output_id) == "x"


def fill(folder: Path, number: int) -> None:
    async def work() -> None:
        async with keeping(SETTINGS, LocalStore(folder)) as kept:
            assert kept is not None
            for _ in range(20):
                await keep(kept, Owner(f"token:{number}", "one"), "x" * (MIB // 4))
                assert used_bytes(folder) <= SETTINGS.total_bytes

    asyncio.run(work())


def test_several_processes_at_once_stay_under_the_total(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=fill, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


async def test_off_makes_no_file(tmp_path: Path) -> None:
    async with keeping(OutputSettings(), LocalStore(tmp_path)) as kept:
        assert kept is None
    assert not (tmp_path / TABLES.file).exists()


async def test_what_a_killed_daemon_of_before_has_left_in_files_goes_and_what_others_have_stays(
    tmp_path: Path,
) -> None:
    parent = tmp_path / "outputs"
    dead, living = (OwnFolder(parent, OUTPUT_FILES) for _ in range(2))
    for own in (dead, living):
        (own.path / ("A" * 32)).write_text("x", encoding="utf-8")
    (parent / "notes").mkdir()
    (parent / "notes" / "mine").write_text("x", encoding="utf-8")
    # As its process's end does.
    os.close(dead._lock)
    async with keeping(SETTINGS, LocalStore(tmp_path)):
        assert not dead.path.exists()
        assert (living.path / ("A" * 32)).exists() and (parent / "notes" / "mine").exists()
    living.close()


@settings(max_examples=20)
@given(st.text(st.sampled_from("aé€𝄞"), max_size=3_000))
async def test_pages_are_the_whole(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = KeptOutputs(SETTINGS, LocalStore(Path(folder)))
        try:
            one = await keep(kept, ANN, text)
            pages = [(await kept.read(ANN, one.output_id, page))[1] for page in range(1, one.pages + 1)]
            assert "".join(pages) == text
            assert all(len(page.encode()) <= SETTINGS.page_bytes + 3 for page in pages)
        finally:
            await kept.close()


async def test_another_broker_reads_it_to_its_client_and_the_database_to_nobody(
    shared_state: SharedState, postgres: Postgres, postgres_url: str
) -> None:
    here = KeptOutputs(SETTINGS, shared_state)
    one = await keep(here, ANN, "the secret of Ann")
    await here.close()
    state = SharedState(PostgresServer(postgres_url), (KEY,))
    there = KeptOutputs(SETTINGS, state)
    try:
        assert await whole(there, ANN, one.output_id) == "the secret of Ann"
        assert ids(await there.listed(ANN)) == [one.output_id] and there.list_for(ANN) == []
        with pytest.raises(NotKept):
            await there.read(BOB, one.output_id, 1)
        other = await keep(there, BOB, "the secret of Bob")
        with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=cellblock") as connection:
            rows = connection.execute("SELECT output, body FROM output_pages").fetchall()
            assert len(rows) == 2 and all(b"secret" not in body for _, body in rows)
            # Whoever can write there cannot have Bob read to Ann.
            taken = dict(rows)[other.output_id]
            connection.execute("UPDATE output_pages SET body = %s WHERE output = %s", (taken, one.output_id))
            # Nor say that it is Ann's.
            given = "UPDATE outputs SET principal = %s, client = %s WHERE id = %s"
            connection.execute(given, (ANN.principal, ANN.client, other.output_id))
            for output in (one, other):
                with pytest.raises(OSError, match="changed"):
                    await there.read(ANN, output.output_id, 1)
            connection.execute(given, (BOB.principal, BOB.client, other.output_id))
        postgres.stop()
        try:
            for asking in (there.read(BOB, other.output_id, 1), keep(there, BOB, "x")):
                with pytest.raises(OSError, match="PostgreSQL"):
                    await asyncio.wait_for(asking, 60)
            assert ids(await there.listed(BOB)) == [other.output_id], "its own"
        finally:
            postgres.start()
        assert await whole(there, BOB, other.output_id) == "the secret of Bob"
    finally:
        await there.close()
        state.close()


HUNG = """
import asyncio, pathlib, sys, threading
from cellblock.base.store import LocalStore
from cellblock.config.sections import OutputSettings
from cellblock.frontend.outputs import kept_outputs
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept_outputs import KeptOutputs, Output, keeping

kept_outputs.CLOSE_SECONDS = 0.2
kept_outputs.ASK_SECONDS = 0.1
KeptOutputs._write = lambda *_: threading.Event().wait()


async def main():
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    async with keeping(OutputSettings(inline_bytes=1024), LocalStore(pathlib.Path(sys.argv[1]))) as kept:
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
