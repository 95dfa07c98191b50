"""Whatever others put into a state directory in use stays as it is, and what need not touch it goes on."""

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from cellblock.base.database import SqliteDatabase, StoreError
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.own_folders import OwnFolder
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import OutputSettings
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import OUTPUT_FILES, SOCKETS, SocketDir, prepare_state_dir
from cellblock.base.state_keys import keys_of
from cellblock.base.store import LocalStore
from cellblock.observe.audit import AuditLog
from cellblock.observe.files import PrivateFile
from cellblock.record.rows import Head, Piece
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.serve.http.token import ensure_tokens
from cellblock.serve.kept_outputs import Output, keeping
from cellblock.serve.mcp.use import add_uses
from cellblock.serve.service import Owner
from cellblock.tools.upstream.auth.store import AUTH_DIR, MAX_BYTES
from cellblock.tools.upstream.pins import Pins, PinStore
from cellblock.tools.upstream.server_log import stderr_log
from cellblock.types.learning.store import TABLES, Observations
from cellblock_worker.base.folders import Contents, InTheWay
from support.foreign_things import DATABASE_ENDINGS, FOLDERS, KINDS, NAMES, PIN_FILE, Foreign, is_ours

PLACES = st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES), st.sampled_from(KINDS))


@contextlib.contextmanager
def directory() -> Generator[Path]:
    """A path that leaves room for sockets; in memory where there is such a place, as nothing waits for a disk there."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="cb-", dir=memory if Path(memory).is_dir() else "/tmp") as folder:
        yield Path(folder)


def left_behind(parent: Path, contents: Contents) -> Path:
    """The folder of a process that was killed: its lock is free, its files are there."""
    own = OwnFolder(parent, contents)
    if parent.name == "run":
        for name in ("filled", "shown"):
            (own.path / "deno-dir" / name).mkdir(parents=True)
            (own.path / "deno-dir" / name / "node_analysis_cache_v2").touch()
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(own.path / "hosts.sock"))
    else:
        (own.path / ("B" * 32)).write_bytes(b"x" * 10_000)
    os.close(own._lock)
    return own.path


def steps(state: Path) -> dict[str, tuple[Callable[[], object], tuple[str, ...]]]:
    """What commands do with a state directory, each with the names that it cannot do without."""
    config = ServerConfig.model_validate({"command": "x"})

    def pins() -> None:
        store = PinStore(LocalStore(state))
        store.load("plain")
        store.write("plain", Pins("origin"), replace=True)
        assert store.load("plain") == Pins("origin")

    def login() -> None:
        shelf = LocalStore(state).shelf("logins", MAX_BYTES, folder=AUTH_DIR)
        shelf.write("plain", b"{}", replace=True)
        assert shelf.read("plain") == b"{}"

    def audit() -> None:
        AuditLog(["calls"], state).close()
        with contextlib.closing(PrivateFile(state / "audit.jsonl", max_bytes=100, keep=1)) as file:
            for _ in range(5):
                file.write(b'{"time": 1234567890}\n' * 2)

    async def outputs() -> None:
        async with keeping(OutputSettings(inline_bytes=1024), LocalStore(state)) as place:
            await cast("Any", place).keep(Owner("ann", "one"), [Output("result", "text/plain", b"x" * 5000)])

    async def log() -> None:
        async with stderr_log(state / "logs" / "upstream-plain.log", Redactor(config)) as (sink, _):
            sink.write("said")

    def journals() -> None:
        own, auth = LocalStore(state), AuthSettings(keyring="off")
        with contextlib.closing(
            JournalStore(own.database(JOURNAL_TABLES), lambda: keys_of(own, auth), JournalSettings())
        ) as store:
            store.write(Head("r1", "cli", time.time(), ended=time.time()), [Piece("facts", b"{}")])
            assert store.read("r1") is not None

    def named() -> None:
        tokens = NamedTokens(LocalStore(state))
        with contextlib.suppress(ConfigError):
            tokens.create("ci")
        # Whoever has made what is at its name.
        tokens.revoke("ci")

    database, kept, large = (
        tuple(f"{name}.sqlite3{ending}" for ending in DATABASE_ENDINGS)
        for name in ("schemas", "journals", "outputs")
    )
    logs = ("logs", "logs/host.log", "logs/upstream-plain.log")
    return {
        "prepare": (lambda: prepare_state_dir(state), (".cellblock", *logs, *database, *kept, *large)),
        "sockets": (lambda: SocketDir(state).close(), ("run",)),
        "outputs": (lambda: asyncio.run(outputs()), large),
        "store": (lambda: Observations(SqliteDatabase(state / "schemas.sqlite3", TABLES)).close(), database),
        "pins": (pins, ("pins", f"pins/{PIN_FILE}")),
        "login": (login, ("auth", "auth/plain.json")),
        "audit": (audit, ("audit.jsonl", "audit.jsonl.1")),
        "token": (lambda: ensure_tokens(state / "token"), ("token",)),
        "log": (lambda: asyncio.run(log()), ()),
        "journals": (journals, (*kept, "journals.key")),
        "named tokens": (named, ("tokens", "tokens/ci.json")),
        "use": (lambda: add_uses(state, [("cli", "plain")]), ()),
    }


def life(state: Path, foreign: Foreign | None = None) -> set[str]:
    """Does it all. Only what needs the very name of a foreign thing may fail, and says which that is.

    Returns:
        What has failed.
    """
    failed: set[str] = set()
    for name, (work, needs) in steps(state).items():
        try:
            work()
        except (CellblockError, StoreError, InTheWay) as error:
            assert foreign is not None, error
            blocked = [str(state / need) for need in needs if state / need in foreign.planted]
            assert any(path in str(error) for path in blocked), (name, error, blocked)
            failed.add(name)
            if name == "prepare":
                # No command goes on behind that.
                break
    return failed


@settings(max_examples=25)
@given(st.lists(PLACES, min_size=1, max_size=10))
def test_in_a_directory_in_use(things: list[tuple[str, str, str]]) -> None:
    with directory() as top:
        state, foreign = top / "s", Foreign(top / "outside")
        assert life(state) == set()
        sockets = SocketDir(state)
        left = {
            "run": left_behind(state / "run", SOCKETS),
            "outputs": left_behind(state / "outputs", OUTPUT_FILES),
        }
        own = {"run": sockets.path, "outputs": left["outputs"]}
        for folder, name, kind in things:
            if is_ours(f"{folder}/{name}".removeprefix("./"), kind):
                continue
            kind_of_folder = folder.partition("/")[0]
            if kind_of_folder in own:
                folder = folder.replace("OWN", own[kind_of_folder].name).replace(
                    "LEFT", left[kind_of_folder].name
                )
            foreign.plant(state / folder / name, kind)
        before = foreign.seen()
        life(state, foreign)
        assert foreign.seen() == before
        sockets.close()
        life(state, foreign)
        assert foreign.seen() == before
        for folder in (*own.values(), *left.values()):
            kept = [path for path in foreign.planted if path.is_relative_to(folder)]
            assert folder.exists() == bool(kept), kept
            assert sorted(folder.rglob("*")) == sorted(
                path
                for path in folder.rglob("*")
                if any(path.is_relative_to(one) or one.is_relative_to(path) for one in kept)
            )


@settings(max_examples=25)
@given(st.lists(PLACES, min_size=1, max_size=10))
def test_in_a_directory_that_is_used_for_the_first_time(things: list[tuple[str, str, str]]) -> None:
    with directory() as top:
        state, foreign = top / "s", Foreign(top / "outside")
        for folder, name, kind in things:
            if folder.startswith(("pins", "auth", "tokens")) and kind == "file":
                continue
            foreign.plant(
                state / folder.replace("OWN", "broker-00000000").replace("LEFT", "mine") / name, kind
            )
        before = foreign.seen()
        try:
            prepare_state_dir(state)
        except ConfigError as error:
            assert any(str(path) in str(error) for path in foreign.planted), error
        else:
            for _ in range(2):
                life(state, foreign)
        assert foreign.seen() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_needed_is_named(tmp_path: Path, kind: str) -> None:
    """Every one of them, with every kind of thing at it: random ones are rare."""
    for need in {need for _, needs in steps(tmp_path).values() for need in needs}:
        if kind.endswith("folder") and "link" not in kind and "." not in need:
            continue  # a folder is what is wanted there
        if "/" in need and (kind == "file") != need.startswith("logs/"):
            continue  # a plain file is a pin or a login; other things in place of a log are only warned of
        with directory() as top:
            foreign = Foreign(top / "outside")
            foreign.plant(top / "s" / need, kind)
            before = foreign.seen()
            try:
                assert life(top / "s", foreign), need
            finally:
                assert foreign.seen() == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_what_clients_use_is_not_kept_where_something_else_has_its_name(kind: str) -> None:
    with directory() as top:
        foreign = Foreign(top / "outside")
        foreign.plant(top / "s" / "cellblock-used.json", kind)
        before = foreign.seen()
        assert life(top / "s") == set()
        assert foreign.seen() == before
