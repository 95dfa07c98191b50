"""Which tools a script is given, by the configured reaction."""

import json
import logging
from pathlib import Path

import pytest

from cellblock.base.settings.sections import Reaction
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.fleet import shared_state
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.tools.upstream.definitions import ToolDefinition, admit, from_json
from cellblock.tools.upstream.pins import MAX_NOTES, PinStore, Review, Reviewer
from support.postgresql import Postgres
from support.shared_rows import KEY, state_of

CONFIG = ServerConfig(command="x")


def tools(**descriptions: str) -> list[ToolDefinition]:
    made = [
        admit(json.dumps({"name": name, "description": text, "inputSchema": {"type": "object"}}).encode())
        for name, text in descriptions.items()
    ]
    return [one for one in made if isinstance(one, ToolDefinition)]


def introduction(says: str) -> ToolDefinition:
    return from_json({"name": "", "title": "s", "description": says})


def reviewer(folder: Path, reaction: Reaction, **servers: Reaction) -> Reviewer:
    return Reviewer({"*": reaction, **servers}, PinStore(LocalStore(folder)))


def names(review: Review) -> tuple[list[str], list[str]]:
    return [one.name for one in review.offered], [one.name for one in review.withheld]


@pytest.mark.parametrize("reaction", ["warn", "quarantine"])
def test_the_first_list_is_pinned_and_the_same_list_is_fine(tmp_path: Path, reaction: Reaction) -> None:
    for _ in range(2):
        review = reviewer(tmp_path, reaction).review("s", CONFIG, tools(a="1", b="2"))
        assert names(review) == (["a", "b"], []) and not review.warnings
    assert PinStore(LocalStore(tmp_path)).load("s") is not None


def test_warn_offers_what_differs_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reviewer(tmp_path, "warn").review("s", CONFIG, tools(a="1", b="2"))
    again = reviewer(tmp_path, "warn")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            review = again.review("s", CONFIG, tools(a="other", b="2", c="3"))
    assert names(review) == (["a", "b", "c"], [])
    assert set(review.differing) == {"a", "c"}
    [warning] = review.warnings
    assert "a, c" in warning and "cellblock pins approve s" in warning
    assert len([record for record in caplog.records if "approve" in record.getMessage()]) == 1


def test_another_command_quarantines_every_tool(tmp_path: Path) -> None:
    reviewer(tmp_path, "quarantine").review("s", CONFIG, tools(a="1"))
    other = ServerConfig(command="y")
    review = reviewer(tmp_path, "quarantine").review("s", other, tools(a="1", b="2"))
    assert names(review) == ([], ["a", "b"])
    assert "command or URL" in review.withheld[0].why


def test_an_empty_first_list_is_not_what_is_trusted(tmp_path: Path) -> None:
    quarantine = reviewer(tmp_path, "quarantine")
    assert names(quarantine.review("s", CONFIG, [])) == ([], [])
    assert names(quarantine.review("s", CONFIG, tools(a="1"))) == (["a"], [])
    assert names(quarantine.review("s", CONFIG, tools(a="1", b="2"))) == (["a"], ["b"])


async def test_the_introduction_of_a_server_without_tools_is_pinned(tmp_path: Path) -> None:
    """And its first tools are, when they come."""
    lists = [
        [*tools(**more), introduction("Says a")]
        for more in (dict[str, str](), {"a": "1"}, {"a": "1", "b": "2"})
    ]
    one = reviewer(tmp_path, "quarantine")
    await one.prepare("s", CONFIG, lists[0])
    assert names(one.review("s", CONFIG, [introduction("Says b")])) == ([], ["its introduction"])
    expected: list[tuple[list[str], list[str]]] = [([""], []), (["a", ""], []), (["a", ""], ["b"])]
    for offered, seen in zip(lists, expected, strict=True):
        await one.prepare("s", CONFIG, offered)
        assert names(one.review("s", CONFIG, offered)) == seen


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
    await waiting.prepare("s", CONFIG, tools(a="1"))
    assert names(waiting.review("s", CONFIG, tools(a="1"))) == ([], ["a"])
    blocked.unlink()
    await waiting.prepare("s", CONFIG, tools(a="1"))
    assert names(waiting.review("s", CONFIG, tools(a="1"))) == (["a"], [])


async def test_what_one_broker_has_pinned_another_holds_tools_against(
    postgres_server: PostgresServer,
) -> None:
    here_state, there_state = state_of(postgres_server), state_of(postgres_server)
    here, there = (Reviewer({"*": "quarantine"}, PinStore(state)) for state in (here_state, there_state))
    await here.prepare("s", CONFIG, tools(a="1"))
    assert names(here.review("s", CONFIG, tools(a="1"))) == (["a"], [])
    # The other one has not looked since.
    changed = tools(a="2")
    await there.prepare("s", CONFIG, changed)
    assert names(there.review("s", CONFIG, changed)) == ([], ["a"])
    store = PinStore(here_state)
    pins = store.load("s")
    assert pins is not None and not there.approved_meanwhile("s")
    store.write("s", pins.approving(pins.origin, changed), replace=True)
    there_state.rows.read()
    assert there.approved_meanwhile("s")
    await there.prepare("s", CONFIG, changed)
    assert names(there.review("s", CONFIG, changed)) == (["a"], [])


async def test_while_it_is_not_known_what_is_pinned_nothing_is_trusted(
    postgres: Postgres, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_state, "FIRST_SECONDS", 0.05)
    first = Reviewer({"*": "quarantine"}, PinStore(state_of(postgres_server)))
    await first.prepare("s", CONFIG, tools(a="1"))
    state = SharedState(postgres_server, (KEY,))
    waiting = Reviewer({"*": "quarantine", "w": "warn"}, PinStore(state))
    with postgres.away():
        for server in ("s", "new", "w"):
            await waiting.prepare(server, CONFIG, tools(a="2"))
        assert names(waiting.review("s", CONFIG, tools(a="2"))) == ([], ["a"])
        assert names(waiting.review("new", CONFIG, tools(a="2"))) == ([], ["a"])
        said = waiting.review("w", CONFIG, tools(a="2"))
        assert names(said) == (["a"], []) and "PostgreSQL was not reached yet" in said.warnings[0]
    state.rows.read()
    for server, expected in (("s", ([], ["a"])), ("new", (["a"], []))):
        assert waiting.approved_meanwhile(server), "it is looked at again"
        await waiting.prepare(server, CONFIG, tools(a="2"))
        assert names(waiting.review(server, CONFIG, tools(a="2"))) == expected
    # On the loop nothing is written.
    assert names(waiting.review("later", CONFIG, tools(a="2"))) == ([], ["a"])
    assert PinStore(state).load("later") is None


def test_a_server_may_have_another_reaction(tmp_path: Path) -> None:
    mixed = reviewer(tmp_path, "quarantine", lenient="warn", free="off")
    for server in ("strict", "lenient", "free"):
        mixed.review(server, CONFIG, tools(a="1"))
    after = {
        server: names(mixed.review(server, CONFIG, tools(a="2"))) for server in ("strict", "lenient", "free")
    }
    assert after == {"strict": ([], ["a"]), "lenient": (["a"], []), "free": (["a"], [])}


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
    review = reviewer(tmp_path, "quarantine").review("s", CONFIG, [*tools(a="1"), *tools(**{evil: "1"})])
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
