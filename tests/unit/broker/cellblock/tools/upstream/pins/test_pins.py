"""Pins of one server: what counts as a difference, and which program or address they belong to."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.definitions import ToolDefinition, admit
from cellblock.tools.upstream.pins.pins import Difference, Pins, fingerprint, first_pins

ORIGIN = "sha256:one"


def tool(name: str, description: str = "d") -> ToolDefinition:
    made = admit(types.Tool(name=name, description=description, input_schema={"type": "object"}))
    assert isinstance(made, ToolDefinition)
    return made


def test_what_is_as_pinned_differs_in_nothing_and_a_vanished_tool_is_no_difference() -> None:
    pins = first_pins(ORIGIN, [tool("a"), tool("b"), tool("c")])
    assert pins.differences(ORIGIN, [tool("b"), tool("a")]) == {}
    assert pins.differences(ORIGIN, []) == {}


def test_changed_and_new_tools_differ() -> None:
    pins = first_pins(ORIGIN, [tool("a"), tool("b")])
    found = pins.differences(ORIGIN, [tool("a", "other"), tool("b"), tool("c")])
    assert found == {"a": Difference.CHANGED, "c": Difference.NEW}


def test_a_tool_that_comes_back_is_held_against_its_old_pin() -> None:
    pins = first_pins(ORIGIN, [tool("a"), tool("b")]).approving(ORIGIN, [tool("a", "other")])
    assert pins.differences(ORIGIN, [tool("a", "other"), tool("b")]) == {}
    assert pins.differences(ORIGIN, [tool("b", "other")]) == {"b": Difference.CHANGED}


def test_what_is_listed_no_more_keeps_its_pin_and_is_gone_until_it_comes_back() -> None:
    pins = first_pins(ORIGIN, [tool("a"), tool("b")]).seen([tool("a"), tool("new")])
    assert pins.gone == {"b"} and set(pins.listed()) == {"a"}
    assert pins.differences(ORIGIN, [tool("b", "other")]) == {"b": Difference.CHANGED}
    approved = pins.approving(ORIGIN, [tool("b", "other")])
    assert not approved.gone and set(approved.listed()) == {"a", "b"}
    assert pins.approving(ORIGIN, [tool("a", "other")]).gone == {"b"}
    assert not pins.approving("other", [tool("a")]).gone
    assert not pins.seen([tool("b"), tool("a")]).gone
    assert pins.seen([tool("b")], whole=False).gone == frozenset()
    assert pins.seen([], whole=False).gone == {"b"}


def test_another_server_under_the_name_shares_no_pin() -> None:
    pins = first_pins(ORIGIN, [tool("a"), tool("b")])
    assert pins.differences("other", [tool("a")]) == {"a": Difference.OTHER_SERVER}
    approved = pins.approving("other", [tool("a")])
    assert approved == Pins("other", first_pins("other", [tool("a")]).tools)


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


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_new_secret_makes_no_new_server(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = (fingerprint(ServerConfig.model_validate(config)) for config in (one, other))
    assert first == second
    assert "secret" not in first


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_another_command_or_url_is_another_server(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = (fingerprint(ServerConfig.model_validate(config)) for config in (one, other))
    assert first != second
