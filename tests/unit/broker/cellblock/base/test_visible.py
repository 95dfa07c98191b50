"""Hidden characters of servers reach no description, declaration, terminal or page, whichever way out they take; what a
terminal shows of foreign text, and how wide it is."""

import io
import json
import logging
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from cellblock.base.redaction import safe_text
from cellblock.base.terminal import (
    Painter,
    cell,
    columns,
    harmless,
    is_coloured,
    json_text,
    milliseconds,
    plain,
    spelled_line,
    spelled_out,
    wrapped,
)
from cellblock.base.visible import TAKE_NO_COLUMN, is_visible, visible, visible_schema
from cellblock.observe.logs import _Safe  # pyright: ignore[reportPrivateUsage]
from cellblock.serve.http.pages import json_page
from cellblock.serve.mcp.live import one_line
from cellblock.tools.upstream.auth.authority import shown_line
from cellblock.tools.upstream.definitions import shown
from cellblock.tools.upstream.resources import new_listing
from cellblock.tools.upstream.wire.messages import quoted

HIDDEN = {
    "tags": "\U000e0001\U000e0069\U000e0067\U000e007f",
    "selectors": "\U000e0100\U000e01ef",
    "bidi": "\u202e\u2066\u2069\u200f\u061c",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "controls": "\x00\x08\x1b[2J\x7f\x9b",
    "fillers": "\u3164\u115f\u2800",
}


def listed(hidden: str) -> str:
    entries = new_listing("prompts")
    entries.take(json.dumps({"name": "p", "title": f"a{hidden}b", "description": f"a{hidden}b"}).encode())
    (one,) = entries.kept
    return f"{one.title}{one.description}"


def logged(hidden: str, formatter: type[_Safe]) -> str:
    record = logging.LogRecord("cellblock", logging.WARNING, "", 0, "it said a%sb", (hidden,), None)
    return formatter(()).format(record)


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
    ("text", "shown"),
    [
        ("👩\u200d💻", "👩\u200d💻"),
        ("❤\ufe0f\u200d🔥", "❤\ufe0f\u200d🔥"),
        ("1\ufe0f\u20e3", "1\ufe0f\u20e3"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        ("é 日本語 Ω", "é 日本語 Ω"),
        ("a\nb\tc", "a\nb\tc"),
        ("❤\ufe0f 1\ufe0f\u20e3 ✂\ufe0e", "❤\ufe0f 1\ufe0f\u20e3 ✂\ufe0e"),
        # Nothing hides behind one; a flag of tags is no way round.
        ("❤\ufe0f\ufe0f\ufe0f", "❤\ufe0f\ufffd\ufffd"),
        ("\ufe0fa\x1b\ufe0f", "\ufffda\ufffd\ufffd"),
        ("🏴\U000e0067\U000e007f", "🏴\ufffd\ufffd"),
        ("a\u200db 日\u200d\u200d本", "a\ufffdb 日\ufffd\ufffd本"),
    ],
    ids=ascii,
)
def test_letters_and_emoji_stay_and_nothing_hides_behind_one(text: str, shown: str) -> None:
    assert visible(text, keep="\n\t") == shown and not is_visible("\ufe0f")


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


@given(st.text(max_size=60), st.integers(0, 40))
def test_any_text_takes_at_most_its_columns_and_controls_nothing(text: str, width: int) -> None:
    shown = plain(text, width)
    assert columns(shown) <= width
    assert all(unicodedata.category(char)[0] != "C" for char in shown if char not in TAKE_NO_COLUMN)
    assert "\n" not in shown and "\x1b" not in shown
    assert columns(cell(text, width)) == width


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("", 0, ""),
        ("a", 0, ""),
        ("abc", 1, "…"),
        ("abcd", 4, "abcd"),
        ("abcde", 4, "abc…"),
        ("a\tb", 3, "a·b"),
        ("abcdef", 4, "abc…"),
        ("\x1b[2Jx\u202ey\x9b", 20, "·[2Jx·y·"),
        ("日本語", 5, "日本…"),
    ],
)
@pytest.mark.parametrize("first", ["x", "ä"])
def test_where_text_is_cut(text: str, width: int, shown: str, first: str) -> None:
    """Text that is ASCII is measured in another way."""
    assert plain(text, width) == shown
    if width > 1:
        assert plain(first + text, width + 1) == first + shown


@given(st.text(max_size=60), st.integers(-1, 40))
def test_wrapped_text_is_whole_takes_its_columns_and_controls_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(columns(line) <= max(1, width) for line in lines)
    assert all(char.isprintable() or char in TAKE_NO_COLUMN for line in lines for char in line)
    if width >= 2:
        kept = [visible(line, instead="·") for line in text.expandtabs(4).splitlines()]
        assert "".join(lines) == "".join(kept)


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("abcdef\r\ng\n\nh", 4, ["abcd", "ef", "g", "", "h"]),
        ("日本語", 5, ["日本", "語"]),
        ("日", 1, ["·"]),
        ("", 9, [""]),
    ],
)
def test_where_text_is_wrapped(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width) == lines


def test_marks_without_end_are_wrapped_too() -> None:
    assert len(wrapped("e" + "\u0301" * 1000, 10)) > 20


@given(st.text(st.characters(codec=None), max_size=60))
def test_json_means_the_same_and_controls_nothing(text: str) -> None:
    written = json_text({"text": text, "key\x9b" + text: 1})
    assert json.loads(written) == {"text": text, "key\x9b" + text: 1}
    written.encode()
    joiners = {"\u200c", "\u200d"}
    controls = {char for char in written if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs")} - {"\n"}
    assert (
        not controls and not {char for char in written if unicodedata.bidirectional(char) in BIDI} - joiners
    )


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_what_it_looks_like() -> None:
    assert harmless("a\x1b[2J\n\x9bb\u202e") == "a\ufffd[2J\n\ufffdb\ufffd"
    assert harmless("a\u2800\u3164\u115f\u1160\uffa0\u034f\u17b4b") == "a" + 7 * "\ufffd" + "b"
    assert cell(7, 3, right=True) == "  7"
    assert [milliseconds(value) for value in (None, 3.14, 250, 2500, 120_000)] == [
        "-",
        "3.1 ms",
        "250 ms",
        "2.5 s",
        "2 min",
    ]


@pytest.mark.parametrize(
    ("environment", "screen", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_when_there_is_colour(
    environment: dict[str, str], screen: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: screen)
    assert is_coloured(stream) is expected
    assert Painter(stream)("x", "bold", "red") == ("\x1b[1;31mx\x1b[0m" if expected else "x")
    assert Painter(stream)("") == ""


@pytest.mark.parametrize("character", list("a ü✓日❤🎉\u0301\u093f\u1820\U0001f3fd"))
def test_letters_signs_and_marks_are_seen(character: str) -> None:
    assert is_visible(character)
    assert visible(f"a{character}b") == f"a{character}b"


@pytest.mark.parametrize(
    "character",
    list(
        "\n\t\x1b\x9b\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u200f\u2028\u202e\u2065\u2800"
    )
    + list("\u3000\u3164\ufeff\uffa0\ufff0\U0001d173\U000e0001\U000e0041\U000e0100\U000e0fff\ue000"),
    ids=ascii,
)
def test_what_is_not_seen_is_told(character: str) -> None:
    assert not is_visible(character)
    assert visible(f"a{character}b") == ("a b" if character in "\u00a0\u3000" else "a\ufffdb")


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("rm \u202egnp\x1b[2J\n\u200b\U000e0041", "rm \\u202egnp\\x1b[2J\\n\\u200b\\U000e0041"),
        ("a" + " " * 16 + "b", "a" + " " * 16 + "b"),
        ("a" + " " * 400 + "b", "a\\x20{400}b"),
        ("\ud800", "\\ud800"),
    ],
    ids=["signs", "blanks", "many blanks", "half a character"],
)
def test_what_is_to_be_judged_is_spelled_out(text: str, spelled: str) -> None:
    assert spelled_out(text) == spelled


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"-{' ' * 19}headers", f"-{' ' * 19}headers"),
        (f"{' ' * 20}a{' ' * 20}b", f"{' ' * 20}a\\x20{{20}}b"),
        (f"+{' ' * 400}b", f"+{' ' * 60}\\x20{{340}}b"),
        (f"+{' ' * 19}\u200b\u202e\U000e0041\x1b", f"+{' ' * 19}\\u200b\\u202e\\U000e0041\\x1b"),
        ("\u202ea", "\\u202ea"),
        ("", ""),
    ],
)
def test_a_line_of_a_difference_is_as_far_indented_as_in_its_file(line: str, shown: str) -> None:
    assert spelled_line(line) == shown
