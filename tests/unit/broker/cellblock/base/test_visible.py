"""Hidden characters of servers reach no description, declaration, terminal or page, whichever way out they take."""

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest

from cellblock.app.cli.streams import harmless
from cellblock.app.cli.tools import search_text, tool_text
from cellblock.base.redaction import safe_text
from cellblock.base.terminal import Painter, cell, json_text, plain, spelled_out, wrapped
from cellblock.base.visible import visible, visible_schema
from cellblock.observe.logs import _Safe  # pyright: ignore[reportPrivateUsage]
from cellblock.serve.http.pages import json_page
from cellblock.serve.mcp.context import text_of
from cellblock.serve.mcp.live import one_line
from cellblock.serve.mcp.manual import opening
from cellblock.tools.catalog.model import Catalog, ServerEntry, nothing_observed
from cellblock.tools.upstream.auth.exchange import shown_line
from cellblock.tools.upstream.definitions import ToolDefinition, admit, shown
from cellblock.tools.upstream.listing import facts_of
from cellblock.tools.upstream.resources import new_listing
from cellblock.tools.upstream.wire.messages import quoted
from cellblock.types.definitions import mcp_definition, published
from cellblock.types.discovery import Discovery
from cellblock.types.lookup import inspect_tool, list_servers, search_tools
from cellblock.types.typescript import declare_all, declare_server

HIDDEN = {
    "tags": "\U000e0001\U000e0069\U000e0067\U000e007f",
    "selectors": "\U000e0100\U000e01ef",
    "bidi": "\u202e\u2066\u2069\u200f\u061c",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "controls": "\x00\x08\x1b[2J\x7f\x9b",
    "fillers": "\u3164\u115f\u2800",
}


def hostile(hidden: str) -> Catalog:
    """A server that has these characters wherever it says something."""
    said = f"Reads{hidden}notes"
    tool = {
        "name": "read",
        "description": said,
        "annotations": {"title": said},
        "inputSchema": {
            "type": "object",
            "title": said,
            "properties": {
                "path": {"type": "string", "description": said, "enum": [hidden, "a"]},
                "description": {"$ref": "#/$defs/text"},
            },
            "$defs": {"text": {"type": "string", "title": said}},
        },
        "outputSchema": {"type": "object", "description": said, "properties": {"a": {"description": said}}},
    }
    definition = admit(json.dumps(tool).encode())
    assert isinstance(definition, ToolDefinition)
    entry = definition.as_entry("read")
    info = types.Implementation(name=said, version=said)
    session = SimpleNamespace(server_info=info, server_capabilities=None, instructions=said)
    facts = facts_of(cast("Any", session), cast("Any", SimpleNamespace(kept=(), left_out=(), notes=())), ())
    server = ServerEntry(
        "notes",
        facts.name or "",
        "notes",
        version=facts.version,
        description=facts.instructions,
        tools=(entry,),
        by_export={"read": entry},
    )
    return Catalog(1, {"notes": server})


def without_values(found: Any) -> str:
    """What is said in an answer; the values of an `enum` are data."""
    text = json.dumps(found, default=lambda _: None)
    return json.dumps(
        json.loads(text, object_hook=lambda one: {k: v for k, v in one.items() if k != "enum"}),
        ensure_ascii=False,
    )


def of_definition(catalog: Catalog) -> str:
    (one,) = published(catalog).values()
    return without_values(mcp_definition(one, nothing_observed))


def listed(hidden: str) -> str:
    entries = new_listing("prompts")
    entries.take(json.dumps({"name": "p", "title": f"a{hidden}b", "description": f"a{hidden}b"}).encode())
    (one,) = entries.kept
    return f"{one.title}{one.description}"


def logged(hidden: str, formatter: type[_Safe]) -> str:
    record = logging.LogRecord("cellblock", logging.WARNING, "", 0, "it said a%sb", (hidden,), None)
    return formatter(()).format(record)


PAINT = Painter(None)

OF_CATALOG: dict[str, Callable[[Catalog], str]] = {
    "declarations": declare_all,
    "a server's declarations": lambda catalog: declare_server(catalog.servers["notes"]),
    "the agent's resource": lambda catalog: text_of(catalog.servers["notes"]),
    "instructions": opening,
    "describeServer": lambda catalog: str(Discovery(catalog).answer("describeServer", ["notes"])),
    "listTools": lambda catalog: without_values(
        Discovery(catalog).answer("listTools", ["notes", {"detail": "full"}])
    ),
    "searchTools": lambda catalog: without_values(
        Discovery(catalog).answer("searchTools", ["read notes", {"detail": "full"}])
    ),
    "a proxied tool": of_definition,
    "search": lambda catalog: search_text(search_tools(catalog, "read", server=None, limit=3), PAINT),
    "inspect": lambda catalog: tool_text(inspect_tool(catalog, "notes.read"), PAINT),
    "servers": lambda catalog: json.dumps(list_servers(catalog), ensure_ascii=False),
}

OF_TEXT: dict[str, Callable[[str], str]] = {
    "doctor, and all text on a terminal": harmless,
    "JSON on a terminal": json_text,
    "a table": lambda text: plain(text, 80),
    "a cell": lambda text: cell(text, 60),
    "wrapped lines": lambda text: "\n".join(wrapped(text, 40)),
    "a question to the user": spelled_out,
    "a name in a sentence": shown,
    "an error of a tool": safe_text,
    "the error of a login": shown_line,
    "stdout that is no message": lambda text: quoted(text.encode()),
    "a progress message": one_line,
    "a log on a terminal": lambda text: logged(text, _Safe),
    "prompts and resources": listed,
    "a dashboard page": lambda text: json.dumps(
        json.loads(bytes(json_page({"log": [text]}).body)), ensure_ascii=False
    ),
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("way", OF_CATALOG)
def test_what_a_server_says_of_itself(way: str, hidden: str) -> None:
    out = OF_CATALOG[way](hostile(hidden))
    assert "Reads" in out or way == "instructions"
    assert not set(out) & set(hidden.replace("[2J", ""))


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("way", OF_TEXT)
def test_what_a_server_says_meanwhile(way: str, hidden: str) -> None:
    # The joiners stand in JSON for programs: they join what they stand between, and hide nothing there.
    stays = (
        {"\u200c", "\u200d", "\u00ad", "\u3164", "\u115f", "\u2800"}
        if way == "JSON on a terminal"
        else set[str]()
    )
    assert not set(OF_TEXT[way](f"a{hidden}b")) & (set(hidden.replace("[2J", "")) - stays)


@pytest.mark.parametrize(
    "text",
    [
        "👩\u200d💻",
        "❤\ufe0f\u200d🔥",
        "1\ufe0f\u20e3",
        "می\u200cخواهم",
        "क\u094d\u200dष",
        "é 日本語 Ω",
        "a\nb\tc",
    ],
    ids=ascii,
)
def test_letters_and_emoji_stay(text: str) -> None:
    assert visible(text, keep="\n\t") == text


def test_a_flag_of_tags_is_no_way_round() -> None:
    assert visible("🏴\U000e0067\U000e007f") == "🏴\ufffd\ufffd"
    assert visible("a\u200db 日\u200d\u200d本") == "a\ufffdb 日\ufffd\ufffd本"


def test_a_schema_without_hidden_characters_is_the_same_object() -> None:
    schema = {
        "properties": {"enum": {"description": "a"}},
        "anyOf": [{"title": "b"}],
        "default": {"title": "\u200b"},
    }
    assert visible_schema(schema) is schema
    changed = visible_schema({**schema, "properties": {"enum": {"description": "a\u200b"}}})
    assert changed["properties"]["enum"]["description"] == "a\ufffd"
    assert changed["default"] == {"title": "\u200b"}
