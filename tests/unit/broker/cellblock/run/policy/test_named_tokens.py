"""Named tokens: made once, kept as hashes, granted less and never more."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.settings.policy import Grant, PolicySettings
from cellblock.base.store import LocalStore
from cellblock.fleet.shared_state import SharedState
from cellblock.run.policy.named_tokens import MAX_FILE_BYTES, NamedTokens
from cellblock.run.policy.policy import Policy
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from support.at_once import at_once
from support.shared_rows import AnyStore

TOOLS = tuple(ToolEntry(name, name) for name in ("read", "write"))
FILES = ServerEntry(
    "files", "files", "files", tools=TOOLS, by_export={tool.export_name: tool for tool in TOOLS}
)
CATALOG = Catalog(1, servers={"files": FILES})


def shown(policy: Policy, principal: str, asked: Grant | None = None) -> list[str]:
    grants = policy.grants_of(principal, asked)
    catalog = CATALOG if grants is None else grants.narrowed(CATALOG)
    return [tool.tool_name for server in catalog.servers.values() for tool in server.tools]


def test_only_its_hash_is_kept(tmp_path: Path) -> None:
    tokens = NamedTokens(LocalStore(tmp_path / "s"))
    token = tokens.create("ci")
    file = tmp_path / "s" / "tokens" / "ci.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert token.startswith("cellblock.ci.") and token.rpartition(".")[2] not in file.read_text()
    assert tokens.name_of(token) == "ci" and tokens.create("other") != token
    assert [issued.name for issued in tokens.all()] == ["ci", "other"]


def test_another_process_sees_it_come_and_go(store_of_broker: Callable[[], AnyStore]) -> None:
    def look() -> None:
        if isinstance(there_in, SharedState):
            there_in.rows.read()

    there_in = store_of_broker()
    here, there = NamedTokens(store_of_broker()), NamedTokens(there_in)
    assert not there.any and there.all() == []
    token = here.create("ci", grants=Grant(tools=["files.read"]))
    look()
    assert there.any and there.name_of(token) == "ci"
    assert there.grant_of("token:ci") == Grant(tools=["files.read"])
    here.revoke("ci")
    look()
    assert there.name_of(token) is None and not there.any
    # A new one of the same name is another token.
    again = here.create("ci")
    look()
    assert there.name_of(token) is None and there.name_of(again) == "ci"


def test_of_many_that_make_one_name_at_once_one_succeeds(store_of_broker: Callable[[], AnyStore]) -> None:
    def make(_: int) -> str | None:
        try:
            return NamedTokens(store_of_broker()).create("ci")
        except ConfigError:
            return None

    (made,) = filter(None, at_once(make, range(32)))
    tokens = NamedTokens(store_of_broker())
    assert tokens.name_of(made) == "ci" and [issued.name for issued in tokens.all()] == ["ci"]


def test_one_that_is_over_is_no_token(tmp_path: Path) -> None:
    tokens = NamedTokens(LocalStore(tmp_path))
    assert tokens.name_of(tokens.create("ci", expires=1)) is None
    assert [issued.problem for issued in tokens.all()] == ["it has expired"]
    assert shown(Policy(PolicySettings(), ["files"], tokens), "token:ci") == []


@pytest.mark.parametrize(
    "name", ["", "Ann", "a.b", "../token", "a/b", "-a", "ä", "a" * 64, "a\n", "a\0", "ci "]
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    tokens = NamedTokens(LocalStore(tmp_path))
    (tmp_path / "token").write_text("mine")
    with pytest.raises(ConfigError, match="no name for a token"):
        tokens.create(name)
    with pytest.raises(ConfigError, match="There is no token"):
        tokens.revoke(name)
    assert tokens.name_of(f"cellblock.{name}.{'a' * 43}") is None
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def rewritten(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


CHANGED: dict[str, Callable[[Path], object]] = {
    "mode": lambda file: file.chmod(0o640),
    "damaged": lambda file: file.write_text("{"),
    "other": lambda file: rewritten(file, name="cd"),
    "large": lambda file: file.write_text(file.read_text() + " " * MAX_FILE_BYTES),
    "hash": lambda file: rewritten(file, sha256="", grants={}),
}
NO_FILE: dict[str, Callable[[Path], object]] = {
    "link": lambda file: file.symlink_to(file.parents[1] / "kept"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("wrong", [*CHANGED, *NO_FILE])
def test_a_file_that_is_not_as_it_was_written_lets_nobody_in(tmp_path: Path, wrong: str) -> None:
    token = NamedTokens(LocalStore(tmp_path)).create("ci")
    file = tmp_path / "tokens" / "ci.json"
    if wrong in NO_FILE:
        file.rename(tmp_path / "kept")
    (CHANGED | NO_FILE)[wrong](file)
    reader = NamedTokens(LocalStore(tmp_path))
    assert reader.name_of(token) is None
    assert shown(Policy(PolicySettings(), ["files"], reader), "token:ci") == []
    assert [issued.problem is not None for issued in reader.all()] == [True]
    if wrong in NO_FILE:
        with pytest.raises(ConfigError, match="not a file of Cellblock's"):
            reader.revoke("ci")
        assert (tmp_path / "kept").is_file()


def test_its_grant_takes_away_from_the_policys(tmp_path: Path) -> None:
    tokens = NamedTokens(LocalStore(tmp_path))
    tokens.create("all")
    tokens.create("reader", grants=Grant(tools=["files.read"]))
    tokens.create("writer", grants=Grant(tools=["files.write"]))
    wide = Policy(PolicySettings(), ["files"], tokens)
    assert wide.grants_of("token:all") is None and wide.grants_of("token") is None
    asked = (None, Grant(tools=["files.*"]), Grant(tools=["files.write"]))
    assert [shown(wide, "token:reader", one) for one in asked] == [["read"], ["read"], []]
    settings = PolicySettings(
        default=Grant(tools=["files.read"]), clients={"token:all": Grant(), "token": Grant(tools=[])}
    )
    narrow = Policy(settings, ["files"], tokens)
    found = [shown(narrow, f"token:{name}") for name in ("all", "reader", "writer")]
    assert found == [["read", "write"], ["read"], []]
    tokens.revoke("reader")
    assert shown(wide, "token:reader") == [] == shown(wide, "token:nobody")


def test_what_a_renamed_server_would_let_through_is_granted_to_nobody(tmp_path: Path) -> None:
    tokens = NamedTokens(LocalStore(tmp_path))
    tokens.create("ci", grants=Grant(budgets={"files.write": 1}))
    policies = [Policy(PolicySettings(), [server], tokens) for server in ("files", "documents")]
    assert [shown(policy, "token:ci") for policy in policies] == [["read", "write"], []]
