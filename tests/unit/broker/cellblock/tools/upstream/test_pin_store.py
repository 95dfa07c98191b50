"""Pins: what counts as a difference; whole or not at all, and never believed when they are damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.definitions import ToolDefinition, admit, canonical, digest, from_json
from cellblock.tools.upstream.pins import (
    Difference,
    PinError,
    Pins,
    PinStore,
    Reviewer,
    fingerprint,
)
from support.shared_rows import AnyStore


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
    tool = {
        "name": name,
        "title": title or name.upper(),
        "description": "d",
        "inputSchema": {"type": "object"},
    }
    made = admit(json.dumps({**tool, **beside}).encode())
    assert isinstance(made, ToolDefinition)
    return made


async def test_pins_of_before_take_in_icons_and_meta_at_first_sight_and_hold_them_then(
    store: PinStore,
) -> None:
    store.shelf.write("s", OF_BEFORE.encode(), replace=False)
    icons = [{"src": "https://example.com/a.png"}]
    first = [looking("a", icons=icons, _meta={"x": 1}), looking("b"), looking("c", "other", icons=icons)]

    async def offered(*tools: ToolDefinition) -> set[str]:
        reviewer = Reviewer({"*": "quarantine"}, store)
        before = {tool.name for tool in reviewer.review("s", ServerConfig(command="x"), tools).offered}
        await reviewer.prepare("s", ServerConfig(command="x"), tools)
        after = {tool.name for tool in reviewer.review("s", ServerConfig(command="x"), tools).offered}
        assert before == after
        return after

    assert await offered(*first) == {"a", "b"}
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
    data = json.loads(store.shelf.read("s"))
    of_before = json.loads(OF_BEFORE)
    assert data["tools"]["a"].items() >= of_before["tools"]["a"].items() and data["format"] == 1
    assert data["tools"]["a"]["icons"] == icons and data["tools"]["a"]["_meta"] == {"x": 1}


def test_first_pins_replace_no_others_and_no_version_that_was_not_read(either: PinStore) -> None:
    store = either
    assert store.load("files") is None and store.shelf.stamp("files") is None
    assert store.write("files", pins(), replace=False) and not store.write(
        "files", pins("other"), replace=False
    )
    assert store.load("files") == pins()
    read = store.shelf.stamp("files")
    store.write("files", pins("approved meanwhile"), replace=True)
    assert store.shelf.stamp("files") != read
    assert not store.write("files", pins("late"), replace=True, only=read)
    assert store.load("files") == pins("approved meanwhile")
    store.write("files", pins("in time"), replace=True, only=store.shelf.stamp("files"))
    assert store.load("files") == pins("in time")


def test_every_server_has_a_file_of_its_own_in_the_directory(either: PinStore) -> None:
    store = either
    names = ["a/b", "a_b", "../../x", "A", "a", "é", "", "n" * 5_000, "\ud800"]
    paths = {Path(store.shelf.where(name)) for name in names}
    assert len(paths) == len(names)
    assert len({path.parent for path in paths}) == 1
    for name in names:
        store.write(name, pins(), replace=False)
        assert store.load(name) == pins()


def test_the_file_of_another_server_is_not_believed(store: PinStore) -> None:
    store.write("files", pins(), replace=False)
    Path(store.shelf.where("files")).rename(Path(store.shelf.where("other")))
    with pytest.raises(PinError):
        store.load("other")


def by_hand(definition: object, **fields: object) -> bytes:
    """A file whose digest is right, of the tool `a`."""
    entry = {"digest": digest(canonical(definition)), "definition": definition}
    data: dict[str, object] = {"format": 1, "server": "files", "origin": "o", "tools": {"a": entry}}
    return json.dumps({**data, **fields}).encode()


DAMAGE = [
    by_hand({}),
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
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it_and_the_way_out(store: PinStore, damage: bytes) -> None:
    store.write("files", pins(), replace=False)
    Path(store.shelf.where("files")).write_bytes(damage)
    with pytest.raises(PinError) as caught:
        store.load("files")
    assert str(Path(store.shelf.where("files"))) in caught.value.message
    assert "cellblock pins approve files --all" in caught.value.hint


FROM = "sha256:one"


def tool(name: str, description: str = "d") -> ToolDefinition:
    made = admit(
        json.dumps({"name": name, "description": description, "inputSchema": {"type": "object"}}).encode()
    )
    assert isinstance(made, ToolDefinition)
    return made


def test_what_is_as_pinned_differs_in_nothing_and_a_vanished_tool_is_no_difference() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b"), tool("c")])
    assert pins.differences(FROM, [tool("b"), tool("a")]) == {}
    assert pins.differences(FROM, []) == {}


def test_changed_and_new_tools_differ() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b")])
    found = pins.differences(FROM, [tool("a", "other"), tool("b"), tool("c")])
    assert found == {"a": Difference.CHANGED, "c": Difference.NEW}


def test_what_is_listed_no_more_keeps_its_pin_and_is_gone_until_it_comes_back() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b")]).seen([tool("a"), tool("new")])
    assert pins.gone == {"b"} and set(pins.listed()) == {"a"}
    assert pins.differences(FROM, [tool("b", "other")]) == {"b": Difference.CHANGED}
    approved = pins.approving(FROM, [tool("b", "other")])
    assert not approved.gone and set(approved.listed()) == {"a", "b"}
    assert pins.approving(FROM, [tool("a", "other")]).gone == {"b"}
    assert not pins.approving("other", [tool("a")]).gone
    assert not pins.seen([tool("b"), tool("a")]).gone
    assert pins.seen([tool("b")], whole=False).gone == frozenset()
    assert pins.seen([], whole=False).gone == {"b"}


def test_another_server_under_the_name_shares_no_pin() -> None:
    pins = Pins(FROM).approving(FROM, [tool("a"), tool("b")])
    assert pins.differences("other", [tool("a")]) == {"a": Difference.OTHER_SERVER}
    approved = pins.approving("other", [tool("a")])
    assert approved == Pins("other", Pins("other").approving("other", [tool("a")]).tools)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"command": "x", "args": ["--token", "secret-1"]}, {"command": "x", "args": ["--token", "secret-2"]}),
    ({"command": "x", "env": {"API_KEY": "secret-1"}}, {"command": "x", "env": {"API_KEY": "secret-2"}}),
    ({"url": "https://u:secret-1@h/mcp?k=secret-3"}, {"url": "https://h/mcp?k=secret-4"}),
    ({"url": "https://H/mcp", "headers": {"Authorization": "Bearer secret-1"}}, {"url": "https://h/mcp"}),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"command": "x"}, {"command": "y"}),
    ({"command": "npx", "args": ["-y", "one"]}, {"command": "npx", "args": ["-y", "two"]}),
    ({"command": "x", "args": ["a b"]}, {"command": "x", "args": ["a", "b"]}),
    ({"url": "https://h/mcp"}, {"url": "https://h/other"}),
    ({"url": "https://h/mcp"}, {"url": "http://h/mcp"}),
    ({"url": "https://h/mcp"}, {"url": "https://h:8443/mcp"}),
    ({"command": "x"}, {"url": "https://x/"}),
]


@pytest.mark.parametrize(
    ("one", "other", "same"), [*((*pair, True) for pair in SAME), *((*pair, False) for pair in OTHER)]
)
def test_another_command_or_url_is_another_server_and_a_new_secret_is_none(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    first, second = (fingerprint(ServerConfig.model_validate(config)) for config in (one, other))
    assert (first == second) is same
    assert "secret" not in first
