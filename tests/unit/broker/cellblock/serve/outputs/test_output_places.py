"""Outputs are kept the same way in a file and where brokers share them; there, any broker reads them to their owner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from cellblock.base.settings.sections import MIB, OutputSettings
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.serve.client import Owner
from cellblock.serve.outputs import kept_outputs
from cellblock.serve.outputs.kept import Kept, NotKept, Output
from cellblock.serve.outputs.kept_outputs import KeptOutputs
from support.postgresql import Postgres
from support.shared_rows import KEY, AnyStore
from support.waits import until_found

SETTINGS = OutputSettings(inline_bytes=1024, total_bytes=8 * MIB, expire_ms=60_000)
ANN, SAME_ANN, BOB = Owner("token:ann", "one"), Owner("token:ann", "two"), Owner("token:bob", "one")

Made = Callable[..., KeptOutputs]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "PAGE_BYTES", 1024)


@pytest.fixture
async def make(store_of_broker: Callable[[], AnyStore]) -> AsyncIterator[Made]:
    """Makes the place where a front-end keeps outputs."""
    async with contextlib.AsyncExitStack() as stack:

        def made(settings: OutputSettings = SETTINGS) -> KeptOutputs:
            place = KeptOutputs(settings, store_of_broker())
            stack.push_async_callback(place.close)
            return place

        yield made


async def keep(place: KeptOutputs, owner: Owner, text: str) -> Kept:
    (made,) = await place.keep(owner, [Output("result", "application/json", text.encode())])
    return made


async def whole(place: KeptOutputs, owner: Owner, output_id: str) -> str:
    one, text = await place.read(owner, output_id, 1)
    rest = [(await place.read(owner, output_id, page))[1] for page in range(2, one.pages + 1)]
    return "".join([text, *rest])


def ids(found: list[Kept]) -> list[str]:
    return [one.output_id for one in found]


async def test_only_its_own_client_reads_and_lists(make: Made) -> None:
    place, told = make(), list[bool]()
    place.watch(lambda: told.append(True))
    text = "€" * 1000 + "x"
    one = await keep(place, ANN, text)
    assert told and (one.size, one.pages) == (3001, 3)
    assert await whole(place, ANN, one.output_id) == text
    for stranger in (SAME_ANN, BOB):
        with pytest.raises(NotKept):
            await place.read(stranger, one.output_id, 1)
        assert await place.listed(stranger) == place.list_for(stranger) == []
    assert ids(await place.listed(ANN)) == ids(place.list_for(ANN)) == [one.output_id]
    for page in (0, 4):
        with pytest.raises(IndexError) as caught:
            await place.read(ANN, one.output_id, page)
        assert caught.value.args == (3,)
    for bad in ("", "x", "\0", "\ud800", one.output_id[:-1]):
        with pytest.raises(NotKept):
            await place.read(ANN, bad, 1)
    odd = Owner("token:\0", "\ud800")
    assert await whole(place, odd, (await keep(place, odd, "")).output_id) == ""


async def test_the_oldest_go_first(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make()
    of_bob = await keep(place, BOB, "b")
    half = "a" * (MIB // 2)
    made = [await keep(place, ANN, half) for _ in range(5)]
    assert ids(await place.listed(ANN)) == ids(made[:0:-1])
    # Sessions are free to make, and are no way around the cap.
    await keep(place, SAME_ANN, half)
    assert ids(await place.listed(ANN)) == ids(made[:1:-1])
    assert ids(await place.listed(BOB)) == [of_bob.output_id]
    # All together stay within the total.
    for name in "cdef":
        await keep(place, Owner(f"token:{name}", "one"), half * 3)
    assert await place.listed(BOB) == []
    with pytest.raises(OSError, match=r"a quarter of outputs\.total_bytes"):
        await keep(place, ANN, "a" * (2 * MIB + 1))
    monkeypatch.setattr(kept_outputs, "MAX_KEPT", 3)
    small = [await keep(place, BOB, str(number)) for number in range(5)]
    assert ids(await place.listed(BOB)) == ids(place.list_for(BOB)) == ids(small[:1:-1])


async def test_what_has_expired_is_gone(make: Made) -> None:
    place = make(SETTINGS.model_copy(update={"expire_ms": 200}))
    one = await keep(place, ANN, "soon")

    async def gone() -> bool:
        try:
            await place.read(ANN, one.output_id, 1)
        except NotKept:
            return True
        return False

    await until_found(gone, "it has expired", pause=0.05)
    assert await place.listed(ANN) == place.list_for(ANN) == []


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
