"""Pins: what counts as a difference; whole or not at all, and never believed when they are damaged. And which tools a
script is given, by the configured reaction."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.settings.sections import Reaction
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.tools.upstream.definitions import ToolDefinition, admit, canonical, digest, from_json
from cellblock.tools.upstream.pins import (
    MAX_NOTES,
    Difference,
    PinError,
    Pins,
    PinStore,
    Review,
    Reviewer,
    fingerprint,
)
from support.postgresql import Postgres
from support.shared_rows import KEY, AnyStore, state_of

CONFIG = ServerConfig(command="x")
Names = tuple[list[str], list[str]]
"""Of the tools that are offered, and of those that are withheld."""


def tool(name: str, description: str = "d", **more: Any) -> ToolDefinition:
    raw = {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}
    made = admit(json.dumps(raw).encode())
    assert isinstance(made, ToolDefinition)
    return made


def tools(**descriptions: str) -> list[ToolDefinition]:
    return [tool(name, text) for name, text in descriptions.items()]


def introduction(says: str) -> ToolDefinition:
    return from_json({"name": "", "title": "s", "description": says})


def reviewer(folder: Path, reaction: Reaction, **servers: Reaction) -> Reviewer:
    return Reviewer({"*": reaction, **servers}, PinStore(LocalStore(folder)))


def names(review: Review) -> Names:
    return [one.name for one in review.offered], [one.name for one in review.withheld]


async def prepared(one: Reviewer, listed: Sequence[ToolDefinition], server: str = "s") -> Names:
    """What is offered and withheld of a list that the reviewer was prepared for."""
    await one.prepare(server, CONFIG, listed)
    return names(one.review(server, CONFIG, listed))


@pytest.mark.parametrize("reaction", ["warn", "quarantine"])
def test_the_first_list_is_pinned_and_the_same_list_is_fine(tmp_path: Path, reaction: Reaction) -> None:
    for _ in range(2):
        review = reviewer(tmp_path, reaction).review("s", CONFIG, tools(a="1", b="2"))
        assert names(review) == (["a", "b"], []) and not review.warnings


def test_warn_offers_what_differs_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reviewer(tmp_path, "warn").review("s", CONFIG, tools(a="1", b="2"))
    again = reviewer(tmp_path, "warn")
    for _ in range(3):
        review = again.review("s", CONFIG, tools(a="other", b="2", c="3"))
    assert names(review) == (["a", "b", "c"], [])
    assert set(review.differing) == {"a", "c"}
    [warning] = review.warnings
    assert "a, c" in warning and "cellblock pins approve s" in warning
    assert len([record for record in caplog.records if "approve" in record.getMessage()]) == 1


def test_another_command_quarantines_every_tool(tmp_path: Path) -> None:
    reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1"))
    review = reviewer(tmp_path, "quarantine").review("s", ServerConfig(command="y"), tools(a="1", b="2"))
    assert names(review) == ([], ["a", "b"])
    assert "command or URL" in review.withheld[0].why


def test_an_empty_first_list_is_not_what_is_trusted(tmp_path: Path) -> None:
    quarantine = reviewer(tmp_path, "quarantine")
    lists = ([], tools(a="1"), tools(a="1", b="2"))
    assert [names(quarantine.review("s", CONFIG, listed)) for listed in lists] == [
        ([], []),
        (["a"], []),
        (["a"], ["b"]),
    ]


async def test_the_introduction_of_a_server_without_tools_is_pinned(tmp_path: Path) -> None:
    """And its first tools are, when they come."""
    lists = [
        [*tools(**more), introduction("Says a")]
        for more in (dict[str, str](), {"a": "1"}, {"a": "1", "b": "2"})
    ]
    one = reviewer(tmp_path, "quarantine")
    await one.prepare("s", CONFIG, lists[0])
    assert names(one.review("s", CONFIG, [introduction("Says b")])) == ([], ["its introduction"])
    assert [await prepared(one, listed) for listed in lists] == [
        ([""], []),
        (["a", ""], []),
        (["a", ""], ["b"]),
    ]


async def test_a_list_that_flaps_is_not_written_for_ever(tmp_path: Path) -> None:
    flapping = reviewer(tmp_path, "quarantine")
    stamps: set[object] = set()
    for turn in range(2 * MAX_NOTES):
        await flapping.prepare("s", CONFIG, tools(a="1", b="2") if turn % 2 == 0 else tools(a="1"))
        stamps.add(PinStore(LocalStore(tmp_path)).shelf.stamp("s"))
    assert len(stamps) <= MAX_NOTES + 1


async def test_what_another_command_lists_says_nothing_of_these_pins(tmp_path: Path) -> None:
    one = reviewer(tmp_path, "quarantine")
    await one.prepare("s", CONFIG, tools(a="1", b="2"))
    await one.prepare("s", ServerConfig(command="y"), tools(a="1"))
    assert [tool.name for tool in one.pinned("s", CONFIG)] == ["a", "b"]


async def test_an_error_that_has_passed_is_forgotten(tmp_path: Path) -> None:
    blocked = tmp_path / "pins"
    blocked.write_text("in the way")
    waiting = reviewer(blocked, "quarantine")
    assert await prepared(waiting, tools(a="1")) == ([], ["a"])
    blocked.unlink()
    assert await prepared(waiting, tools(a="1")) == (["a"], [])


async def test_what_one_broker_has_pinned_another_holds_tools_against(
    postgres_server: PostgresServer,
) -> None:
    here_state, there_state = state_of(postgres_server), state_of(postgres_server)
    here, there = (Reviewer({"*": "quarantine"}, PinStore(state)) for state in (here_state, there_state))
    assert await prepared(here, tools(a="1")) == (["a"], [])
    # The other one has not looked since.
    changed = tools(a="2")
    assert await prepared(there, changed) == ([], ["a"])
    store = PinStore(here_state)
    pins: Any = store.load("s")
    assert not there.approved_meanwhile("s")
    store.write("s", pins.approving(pins.origin, changed), replace=True)
    there_state.rows.read()
    assert there.approved_meanwhile("s")
    assert await prepared(there, changed) == (["a"], [])


async def test_while_it_is_not_known_what_is_pinned_nothing_is_trusted(
    postgres: Postgres, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.fleet.shared_state.FIRST_SECONDS", 0.05)
    first = Reviewer({"*": "quarantine"}, PinStore(state_of(postgres_server)))
    await first.prepare("s", CONFIG, tools(a="1"))
    state = SharedState(postgres_server, (KEY,))
    waiting = Reviewer({"*": "quarantine", "w": "warn"}, PinStore(state))
    with postgres.away():
        for server, expected in (("s", ([], ["a"])), ("new", ([], ["a"])), ("w", (["a"], []))):
            assert await prepared(waiting, tools(a="2"), server) == expected
        assert "PostgreSQL was not reached yet" in waiting.review("w", CONFIG, tools(a="2")).warnings[0]
    state.rows.read()
    for server, expected in (("s", ([], ["a"])), ("new", (["a"], []))):
        assert waiting.approved_meanwhile(server), "it is looked at again"
        assert await prepared(waiting, tools(a="2"), server) == expected
    # On the loop nothing is written.
    assert names(waiting.review("later", CONFIG, tools(a="2"))) == ([], ["a"])
    assert PinStore(state).load("later") is None


@pytest.mark.parametrize(
    ("server", "expected"),
    [("strict", ([], ["a"])), ("lenient", (["a"], [])), ("free", (["a"], []))],
)
def test_a_server_may_have_another_reaction(tmp_path: Path, server: str, expected: Names) -> None:
    mixed = reviewer(tmp_path, "quarantine", lenient="warn", free="off")
    mixed.review(server, CONFIG, tools(a="1"))
    assert names(mixed.review(server, CONFIG, tools(a="2"))) == expected


def test_a_damaged_file_is_never_trusted_anew(tmp_path: Path) -> None:
    reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1"))
    path = Path(PinStore(LocalStore(tmp_path)).shelf.where("s"))
    path.write_text("{")
    review = reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1"))
    assert names(review) == ([], ["a"])
    assert str(path) in review.withheld[0].why and "approve s --all" in review.withheld[0].hint
    warned = reviewer(tmp_path, "warn").review("s", CONFIG, tools(a="1"))
    assert names(warned) == (["a"], []) and str(path) in warned.warnings[0]
    assert path.read_text() == "{"


def test_names_of_a_server_are_shown_without_what_a_terminal_acts_on(tmp_path: Path) -> None:
    reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1"))
    evil = "x\x1b]0;owned\x07`; rm -rf ~`"
    review = reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1", **{evil: "1"}))
    said = review.warnings[0] + review.withheld[0].hint + review.withheld[0].name
    assert "\x1b" not in said and "\x07" not in said
    # As one word of the shell.
    assert "approve s 'x" in review.withheld[0].hint


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        (ServerConfig(command="/opt/server"), ["a", "b"]),
        (ServerConfig(command="python3", args=["-m", "server"]), ["a", "b"]),
        (ServerConfig(command="npx", args=["-y", "@x/server"]), []),
        (ServerConfig(command="uvx", args=["server"]), []),
        (ServerConfig(command="/usr/bin/docker", args=["run", "-i", "x/server"]), []),
        (ServerConfig(url="https://example.com/mcp"), []),
    ],
)
def test_by_default_what_changes_is_left_out_where_the_server_is_fetched(
    tmp_path: Path, config: ServerConfig, offered: list[str]
) -> None:
    reviewer(tmp_path, "auto").review("s", config, tools(a="1"))
    assert names(reviewer(tmp_path, "auto").review("s", config, tools(a="other", b="2")))[0] == offered
    # One word gives the old way.
    assert names(reviewer(tmp_path, "warn").review("s", config, tools(a="other", b="2")))[0] == ["a", "b"]
    # A damaged file is trusted as little as a change is.
    Path(PinStore(LocalStore(tmp_path)).shelf.where("s")).write_text("{")
    assert names(reviewer(tmp_path, "auto").review("s", config, tools(a="1", b="2")))[0] == offered


# ---- what is kept, and what differs from it -----------------------------------------------------------


def pins(description: str = "d") -> Pins:
    definition = {"name": "a", "description": description, "inputSchema": {"type": "object", "x": "\ud800é"}}
    return Pins("sha256:o", {"a": from_json(definition)})


@pytest.fixture
def store(tmp_path: Path) -> PinStore:
    return PinStore(LocalStore(tmp_path / "state"))


@pytest.fixture
def either(store_of_broker: Callable[[], AnyStore]) -> PinStore:
    """Pins in files, and in rows that brokers share."""
    return PinStore(store_of_broker())


def test_what_is_gone_is_kept_and_a_file_without_it_is_of_an_earlier_version(store: PinStore) -> None:
    gone = replace(pins(), gone=frozenset({"a"}))
    store.write("files", gone, replace=True)
    assert store.load("files") == gone
    data = json.loads(Path(store.shelf.where("files")).read_bytes())
    del data["gone"]
    Path(store.shelf.where("files")).write_text(json.dumps(data))
    assert store.load("files") == pins()


OF_BEFORE = """{
 "format": 1,
 "server": "s",
 "origin": "sha256:0bff3494d1cb64b1999f2b4baa8a38dcac5db771a827bcb9b3c2f2b99239a24a",
 "tools": {
  "a": {
   "digest": "sha256:2cd1fdbe1c4136c4977481feda16d00db9cf6be8e2333fb32ac9df5ffe0a239b",
   "definition": {"name": "a", "title": "A", "description": "d", "inputSchema": {"type": "object"}}
  },
  "b": {
   "digest": "sha256:915fc45f37ee008ebdbbe83c84e492a928db74a71249fd3f42fec001e7199ec7",
   "definition": {"name": "b", "title": "B", "description": "d", "inputSchema": {"type": "object"}}
  },
  "c": {
   "digest": "sha256:6abbae19073b8eb47413fc274d4e8aa90c2d179a9f5714c4ad0a467828b896df",
   "definition": {"name": "c", "title": "C", "description": "d", "inputSchema": {"type": "object"}}
  }
 },
 "gone": []
}"""
"""A file that 0.1.0 has made."""


def looking(name: str, title: str | None = None, **beside: Any) -> ToolDefinition:
    return tool(name, title=title or name.upper(), **beside)


async def test_pins_of_before_take_in_icons_and_meta_at_first_sight_and_hold_them_then(
    store: PinStore,
) -> None:
    store.shelf.write("s", OF_BEFORE.encode(), replace=False)
    icons = [{"src": "https://example.com/a.png"}]
    first = [looking("a", icons=icons, _meta={"x": 1}), looking("b"), looking("c", "other", icons=icons)]

    async def offered(*tools: ToolDefinition) -> set[str]:
        one = Reviewer({"*": "quarantine"}, store)
        before = names(one.review("s", CONFIG, tools))
        assert await prepared(one, tools) == before
        return set(before[0])

    for _ in range(2):
        assert await offered(*first) == {"a", "b"}
    for changed in (
        {"icons": icons, "_meta": {"x": 2}},
        {"icons": [], "_meta": {"x": 1}},
        {"icons": icons},
        {},
    ):
        assert await offered(looking("a", **changed), *first[1:]) == {"b"}
    for changed in ({"icons": icons}, {"_meta": {"x": 1}}):
        assert await offered(first[0], looking("b", **changed)) == {"a"}
    # One that was another tool at the first sight takes in what it has when it is itself again, and no other.
    again = looking("c", icons=icons)
    assert await offered(first[0], again) == {"a", "c"} and await offered(looking("c")) == set()
    # What 0.1.0 does not know is beside what it reads.
    data, of_before = json.loads(store.shelf.read("s")), json.loads(OF_BEFORE)
    assert data["format"] == 1
    kept = {**of_before["tools"]["a"], "icons": icons, "_meta": {"x": 1}}
    assert data["tools"]["a"].items() >= kept.items()


def test_first_pins_replace_no_others_and_no_version_that_was_not_read(either: PinStore) -> None:
    assert either.load("files") is None and either.shelf.stamp("files") is None
    assert either.write("files", pins(), replace=False) and not either.write(
        "files", pins("other"), replace=False
    )
    assert either.load("files") == pins()
    read = either.shelf.stamp("files")
    either.write("files", pins("approved meanwhile"), replace=True)
    assert either.shelf.stamp("files") != read
    assert not either.write("files", pins("late"), replace=True, only=read)
    assert either.load("files") == pins("approved meanwhile")
    either.write("files", pins("in time"), replace=True, only=either.shelf.stamp("files"))
    assert either.load("files") == pins("in time")


def test_every_server_has_a_file_of_its_own_in_the_directory(either: PinStore) -> None:
    names = ["a/b", "a_b", "../../x", "A", "a", "é", "", "n" * 5_000, "\ud800"]
    paths = {Path(either.shelf.where(name)) for name in names}
    assert len(paths) == len(names)
    assert len({path.parent for path in paths}) == 1
    for name in names:
        either.write(name, pins(), replace=False)
        assert either.load(name) == pins()


def by_hand(definition: object, **fields: object) -> bytes:
    """A file whose digest is right, of the tool `a`."""
    tools = {"a": {"digest": digest(canonical(definition)), "definition": definition}}
    return json.dumps({"format": 1, "server": "files", "origin": "o", "tools": tools, **fields}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        by_hand({}),
        # The file of another server.
        by_hand({"name": "a"}, server="other"),
        # A definition that was edited.
        by_hand({"name": "a"}).replace(b'{"name": "a"}', b'{"name": "a", "description": "edited"}'),
        by_hand({"description": "d"}),
        by_hand({"name": "b"}),
        by_hand({"name": ["a"]}),
        by_hand({"name": "a", "title": 5}),
        by_hand({"name": "a", "description": ["d"]}),
        by_hand({"name": "a", "annotations": "readOnly"}),
        # Its icons are no part of the definition, and `whole` is not of these.
        by_hand({"name": "a", "icons": []}),
        by_hand({"name": "a"}).replace(b'"definition"', b'"icons": [], "definition"'),
        by_hand({"name": "a"}).replace(b'"definition"', b'"whole": "sha256:x", "icons": [], "definition"'),
        by_hand({"name": "a"}, gone="a"),
        by_hand({"name": "a"}, gone=[["a"]]),
        by_hand({"name": "a"}, gone=[5, "a"]),
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"format": 2, "server": "files", "origin": "o", "tools": {}}',
        b'{"format": 1, "server": "files", "origin": 5, "tools": {}}',
        b'{"format": 1, "server": "files", "origin": "o", "tools": []}',
        b'{"format": 1, "server": "files", "origin": "o", "tools": {"a": 5}}',
        b'{"format": 1, "server": "files", "origin": "o", "tools": {"a": {"digest": "x", "definition": {}}}}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_and_the_way_out(store: PinStore, damage: bytes) -> None:
    store.write("files", pins(), replace=False)
    Path(store.shelf.where("files")).write_bytes(damage)
    with pytest.raises(PinError) as caught:
        store.load("files")
    assert str(Path(store.shelf.where("files"))) in caught.value.message
    assert "cellblock pins approve files --all" in caught.value.hint


FROM = "sha256:one"


@pytest.mark.parametrize(
    ("origin", "listed", "found"),
    [
        # What is as pinned differs in nothing, and a vanished tool is no difference.
        (FROM, [tool("b"), tool("a")], {}),
        (FROM, [], {}),
        (FROM, [tool("a", "other"), tool("b"), tool("d")], {"a": Difference.CHANGED, "d": Difference.NEW}),
        ("other", [tool("a")], {"a": Difference.OTHER_SERVER}),
    ],
    ids=["the same", "none", "changed and new", "another server"],
)
def test_what_differs_from_pins(
    origin: str, listed: list[ToolDefinition], found: dict[str, Difference]
) -> None:
    assert Pins(FROM).approving(FROM, [tool("a"), tool("b"), tool("c")]).differences(origin, listed) == found


def test_what_is_listed_no_more_keeps_its_pin_and_is_gone_until_it_comes_back() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b")]).seen([tool("a"), tool("new")])
    assert pins.gone == {"b"} and set(pins.listed()) == {"a"}
    assert pins.differences(FROM, [tool("b", "other")]) == {"b": Difference.CHANGED}
    approved = pins.approving(FROM, [tool("b", "other")])
    assert not approved.gone and set(approved.listed()) == {"a", "b"}
    for later, gone in (
        (pins.approving(FROM, [tool("a", "other")]), {"b"}),
        (pins.approving("other", [tool("a")]), set[str]()),
        (pins.seen([tool("b"), tool("a")]), set[str]()),
        (pins.seen([tool("b")], whole=False), set[str]()),
        (pins.seen([], whole=False), {"b"}),
    ):
        assert later.gone == gone


def test_another_server_under_the_name_shares_no_pin() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b")])
    assert pins.approving("other", [tool("a")]) == Pins(
        "other", Pins("other").approving("other", [tool("a")]).tools
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *(
            (*pair, True)
            for pair in [
                (
                    {"command": "x", "args": ["--token", "secret-1"]},
                    {"command": "x", "args": ["--token", "secret-2"]},
                ),
                (
                    {"command": "x", "env": {"API_KEY": "secret-1"}},
                    {"command": "x", "env": {"API_KEY": "secret-2"}},
                ),
                ({"url": "https://u:secret-1@h/mcp?k=secret-3"}, {"url": "https://h/mcp?k=secret-4"}),
                (
                    {"url": "https://H/mcp", "headers": {"Authorization": "Bearer secret-1"}},
                    {"url": "https://h/mcp"},
                ),
            ]
        ),
        *(
            (*pair, False)
            for pair in [
                ({"command": "x"}, {"command": "y"}),
                ({"command": "npx", "args": ["-y", "one"]}, {"command": "npx", "args": ["-y", "two"]}),
                ({"command": "x", "args": ["a b"]}, {"command": "x", "args": ["a", "b"]}),
                ({"url": "https://h/mcp"}, {"url": "https://h/other"}),
                ({"url": "https://h/mcp"}, {"url": "http://h/mcp"}),
                ({"url": "https://h/mcp"}, {"url": "https://h:8443/mcp"}),
                ({"command": "x"}, {"url": "https://x/"}),
            ]
        ),
    ],
)
def test_another_command_or_url_is_another_server_and_a_new_secret_is_none(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    first, second = (fingerprint(ServerConfig.model_validate(config)) for config in (one, other))
    assert (first == second) is same
    assert "secret" not in first
