"""Logins at rest: private, whole, bound to one URL, and locked between processes."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.tools.upstream.auth.errors import LoginStoreError
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.sources import OwnSecrets
from cellblock.tools.upstream.auth.store import MAX_BYTES, LoginStore
from support.postgresql import NAME, Cutting, Postgres
from support.shared_rows import AnyStore, state_of
from support.waits import until, within

URL = "https://notes.example/mcp"
SETTINGS = AuthSettings(keyring="off")


def record(url: str = URL) -> LoginRecord:
    client = OAuthClientInformationFull(client_id="c", client_secret="s3cr3t-c")
    return LoginRecord(server_url=url, client=client).with_tokens(
        OAuthToken(access_token="s3cr3t-a", refresh_token="s3cr3t-r", expires_in=60)
    )


@pytest.fixture
async def saved(tmp_path: Path) -> LoginStore:
    """A login that is kept in a file."""
    store = LoginStore(LocalStore(tmp_path), "notes", URL, SETTINGS)
    await store.save(record())
    return store


def file_of(store: LoginStore) -> Path:
    return Path(store._shelf.where(store.name))  # pyright: ignore[reportPrivateUsage]


async def test_a_login_is_the_same_wherever_it_is_kept(store_of_broker: Callable[[], AnyStore]) -> None:
    def login(name: str = "notes", url: str = URL) -> LoginStore:
        return LoginStore(store_of_broker(), name, url, SETTINGS)

    here = login()
    assert (await here.load(), here.stamp()) == (None, None)
    async with here.locked(5):
        await here.save(record())
    first, found = here.stamp(), await login().load()
    times = {"expires_at": None, "renewed": 0.0, "server": "notes"}
    assert found is not None and found.model_copy(update=times) == record().model_copy(update=times)
    async with here.locked(5):
        await here.save(record().with_tokens(None))
    assert here.stamp() != first
    assert (await login().load()).tokens is None
    for name, url in (("notes", "https://notes.example/other"), ("notes2", URL), ("\udcff", URL)):
        assert await login(name, url).load() is None
    await here.delete()
    assert (await here.load(), await login().load()) == (None, None)
    await here.delete()


async def test_one_at_a_time_has_a_login_and_sees_what_the_last_one_wrote(
    store_of_broker: Callable[[], AnyStore],
) -> None:
    places = [LoginStore(store_of_broker(), "notes", URL, SETTINGS) for _ in range(4)]
    await places[0].save(record())

    async def add(number: int, place: LoginStore) -> None:
        for turn in range(3):
            async with place.locked(60):
                await place.save((await place.load()).wanting(f"scope-{number}-{turn}"))

    await asyncio.gather(*(add(number, place) for number, place in enumerate(places)))
    async with places[0].locked(5):
        assert len((await places[0].load()).wanted_scope.split()) == 12
        # Whoever waits, waits for so long.
        with pytest.raises(LoginStoreError):
            async with places[1].locked(0.1):
                pass
        # Who gives up waiting holds nothing.
        waiting = asyncio.create_task(_hold(places[2]))
        await until(lambda: any(one.name == "login lock" for one in threading.enumerate()), "it waits")
        waiting.cancel()
        await asyncio.wait([waiting])
    async with places[1].locked(60):
        pass


async def _hold(place: LoginStore) -> None:
    async with place.locked(60):
        await asyncio.Event().wait()


async def test_many_that_wait_for_another_broker_leave_the_loop_its_threads(
    postgres_server: PostgresServer,
) -> None:
    state = state_of(postgres_server)
    names = [f"s{number}" for number in range(min(32, (os.cpu_count() or 1) + 4))]
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(LoginStore(state, name, URL, SETTINGS).locked(60))
        waiting = [asyncio.create_task(_hold(LoginStore(state, name, URL, SETTINGS))) for name in names]
        await until(lambda: locks(postgres_server, granted=False) == len(names), "all wait")
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 30) == "done"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    await until(lambda: locks(postgres_server, granted=True) == 0, "who has given up holds nothing")


def locks(server: PostgresServer, *, granted: bool) -> int:
    with server.connection() as connection:
        statement = b"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = %s"
        return (connection.execute(statement, (granted,)).fetchone() or (-1,))[0]


def login_of(server: PostgresServer, *, patient: bool = False) -> LoginStore:
    return LoginStore(state_of(server), "notes", URL, SETTINGS, patient=patient)


async def written(store: LoginStore) -> None:
    """Waits until what is held is written, or lost."""
    await within(store._writing)  # pyright: ignore


@pytest.mark.parametrize(
    ("meanwhile", "left"), [("logs in", "theirs"), ("logs out", None), ("renews", "held")]
)
async def test_a_login_that_was_held_takes_no_place_of_what_a_person_has_done_since(
    postgres_url: str, postgres_server: PostgresServer, short_path: Path, meanwhile: str, left: str | None
) -> None:
    before = record().model_copy(update={"since": 1.0})
    way = Cutting(postgres_url, short_path, after=False)
    way.cuts = False
    server = PostgresServer(way.url)
    broker, other = login_of(server, patient=True), login_of(postgres_server)
    await broker.save(before)
    # For this broker alone PostgreSQL is away.
    way.close()
    server.close()
    await broker.save(before.wanting("held"))
    if meanwhile == "logs out":
        await other.delete()
    else:
        await other.save(
            before.wanting("theirs").model_copy(update={"since": (2.0 if meanwhile == "logs in" else 1.0)})
        )
    (short_path / NAME).unlink()
    way = Cutting(postgres_url, short_path, after=False)
    way.cuts = False
    await written(broker)
    found = await login_of(postgres_server).load()
    assert (found and found.wanted_scope) == left
    way.close()


async def test_who_ends_while_it_cannot_be_written_says_that_a_login_is_lost(
    postgres: Postgres, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_of(postgres_server)
    broker = LoginStore(state, "notes", URL, SETTINGS, patient=True)
    await broker.save(record())
    with postgres.away():
        await broker.save(record().wanting("renewed"))
        state.rows.close()
        await written(broker)
    assert "the login of notes is lost" in caplog.text


async def test_a_login_that_cannot_be_written_is_held_until_it_can_be(
    postgres: Postgres, postgres_server: PostgresServer
) -> None:
    broker, command = login_of(postgres_server, patient=True), login_of(postgres_server)
    await broker.save(record())
    with postgres.away():
        with pytest.raises(LoginStoreError, match="PostgreSQL"):
            await command.save(record().with_tokens(None))
        await broker.save(record().wanting("older"))
        await broker.save(record().wanting("renewed"))
        with pytest.raises(LoginStoreError, match="PostgreSQL"):
            async with broker.locked(5):
                pass
        assert (await broker.load()).wanted_scope is None, "what is known"
    await written(broker)
    assert (await login_of(postgres_server).load()).wanted_scope == "renewed"


@pytest.mark.parametrize("others", [None, 2.0])
async def test_the_first_login_of_a_server_is_held_too_unless_a_person_has_logged_in_since(
    postgres: Postgres, postgres_server: PostgresServer, others: float | None
) -> None:
    login = login_of(postgres_server, patient=True)
    assert await login.load() is None
    with postgres.away():
        await login.save(record().wanting("held").model_copy(update={"since": 1.0}))
    if others is not None:
        await login_of(postgres_server).save(record().wanting("theirs").model_copy(update={"since": others}))
    await written(login)
    assert (await login_of(postgres_server).load()).wanted_scope == ("held" if others is None else "theirs")


async def test_a_file_that_was_moved_to_another_place_is_not_taken(saved: LoginStore, tmp_path: Path) -> None:
    other = LoginStore(LocalStore(tmp_path), "notes", "https://evil.example/mcp", SETTINGS)
    file_of(saved).rename(file_of(other))
    assert await other.load() is None
    ada = LoginStore(LocalStore(tmp_path), "notes", URL, SETTINGS, person="oauth:ada")
    file_of(other).rename(file_of(ada))
    assert await ada.load() is None


async def test_a_file_that_others_may_read_is_refused(saved: LoginStore) -> None:
    file_of(saved).chmod(0o640)
    with pytest.raises(LoginStoreError, match="Others may read the login file") as caught:
        await saved.load()
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (text, "is damaged")
            for text in ("", "[]", "{}", '{"record": {"tokens": 1}}', "\xff", "[" * 5000, '{"record": null}')
        ),
        (" " * (MAX_BYTES + 1), "too large"),
    ],
)
async def test_a_damaged_file_is_told_without_what_it_holds(saved: LoginStore, text: str, said: str) -> None:
    file_of(saved).write_bytes(text.encode("latin-1"))
    with pytest.raises(LoginStoreError, match=said):
        await saved.load()
    await saved.save(record())
    assert await saved.load() is not None


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", "ö" * 300, "\udcff"], ids=ascii)
async def test_names_that_look_like_paths_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    store = LoginStore(LocalStore(tmp_path), name, URL, SETTINGS)
    await store.save(record())
    assert file_of(store).parent == tmp_path / "auth"
    assert await store.load() is not None


def test_a_record_shows_no_secret() -> None:
    assert "s3cr3t" not in f"{record()!r} {record()}"
    assert sorted(record().secrets()) == ["s3cr3t-a", "s3cr3t-c", "s3cr3t-r"]
    assert json.loads(record().model_dump_json())["tokens"]["access_token"] == "s3cr3t-a"


def test_what_a_renewal_leaves_out_is_as_before() -> None:
    tokens: Any = record().with_tokens(OAuthToken(access_token="new", expires_in=60)).tokens
    assert (tokens.access_token, tokens.refresh_token) == ("new", "s3cr3t-r")


@pytest.mark.parametrize(("life", "stale"), [(None, False), (0, True), (-5, True), (3600, False), (2, False)])
def test_when_a_token_is_stale(life: int | None, stale: bool) -> None:
    assert record().with_tokens(OAuthToken(access_token="a", expires_in=life)).is_stale() is stale


async def test_principals_that_are_named_alike_have_logins_of_their_own(
    store_of_broker: Callable[[], AnyStore],
) -> None:
    people = [
        "",
        "oauth:a",
        "token:a",
        "oauth:A",
        "oauth:a\0",
        "oauth:a\0b",
        "oauth:a/",
        "oauth:../a",
        "oauth:a ",
        "oauth:%61",
        "oauth:\u0430",
        "oauth:\uff41",
        "oauth:a\u200b",
        "oauth:\u00e5",
        "oauth:a\u030a",
        "oauth:\ud800",
    ]

    store = store_of_broker()

    def login(person: str) -> LoginStore:
        return LoginStore(store, "notes", URL, SETTINGS, person=person)

    for person in people:
        assert await login(person).load() is None, person
        await login(person).save(record().model_copy(update={"person": person}))
        assert OwnSecrets(store, person).get("KEY") is None, person
        OwnSecrets(store, person).put("KEY", repr(person))
    assert OwnSecrets(store, "oauth:a").remove_all() == 1
    for person in people:
        shown = person.encode("utf-8", "backslashreplace").decode()
        assert (await login(person).load()).person == shown
        kept = None if person == "oauth:a" else repr(person)
        assert OwnSecrets(store, person).get("KEY") == kept
