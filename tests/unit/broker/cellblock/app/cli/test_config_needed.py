"""What commands about a daemon read of a configuration: a few values, and no secret of the servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.config_needed import SERVICE, load_needed
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.settings import Settings

SECRETS = {"w": {"url": "https://w/mcp", "headers": {"A": "Bearer ${env:NOT_SET_ANYWHERE}"}}}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a configuration."""

    def write(section: object = None, servers: object = None, *, text: str | None = None) -> Path:
        file = tmp_path / "c.json"
        whole = {"mcpServers": {} if servers is None else servers, "cellblock": section or {}}
        file.write_text(json.dumps(whole) if text is None else text)
        return file

    return write


def test_the_values_are_read_and_no_secret_is_looked_up(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_HERE", str(tmp_path / "state"))
    section = {
        "state_dir": "${env:STATE_HERE}",
        "http": {"drain_ms": 9000},
        "pool": {"warm": "${env:NOT_SET_ANYWHERE}"},
        "traces": {"headers": {"key": "${file:not-there}"}},
    }
    settings, warnings = load_needed(written(section, SECRETS), further=SERVICE)
    assert warnings == []
    assert settings.state_dir == tmp_path / "state"
    assert settings.cellblock.http.drain_ms == 9000
    assert settings.servers == {}


def test_without_a_file_they_are_the_defaults(tmp_path: Path) -> None:
    assert load_needed(None) == (Settings(), [])
    settings, _ = load_needed(None, state_dir=tmp_path)
    assert settings.state_dir == tmp_path


def test_what_is_wrong_elsewhere_is_a_warning_with_its_place(written: Any, tmp_path: Path) -> None:
    section = {"state_dir": str(tmp_path), "pol": {}, "http": {"drain_ms": "long"}}
    servers = {"a": {"comand": "x"}, "b": {"command": 5}, **SECRETS}
    settings, warnings = load_needed(written(section, servers), further=SERVICE)
    assert (
        settings.state_dir == tmp_path
        and settings.cellblock.http.drain_ms == Settings().cellblock.http.drain_ms
    )
    places = ("cellblock.pol:", "cellblock.http.drain_ms:", "mcpServers.a.comand:", "mcpServers.b.command:")
    for place in places:
        (said,) = [warning for warning in warnings if place in warning]
        assert "c.json:1:" in said
    assert len(warnings) == len(places)


def test_a_text_that_cannot_be_parsed_is_a_warning(written: Any) -> None:
    settings, (warning,) = load_needed(written(text='{"cellblock": {'))
    assert settings == Settings() and "c.json:1:16: not valid JSON" in warning


@pytest.mark.parametrize("value", ["${env:NOT_SET_ANYWHERE}", 5])
def test_a_broken_state_dir_is_an_error_where_it_is_wanted(
    written: Any, tmp_path: Path, value: object
) -> None:
    file = written({"state_dir": value})
    with pytest.raises(ConfigProblems, match=r"c\.json:1:\d+: cellblock\.state_dir"):
        load_needed(file)
    settings, (warning,) = load_needed(file, state_dir=tmp_path)
    assert settings.state_dir == tmp_path and "cellblock.state_dir" in warning
    assert len(load_needed(file, has_token_file=True)[1]) == 1


def test_a_file_that_is_not_there_is_an_error_where_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_needed(tmp_path / "absent")
    settings, (warning,) = load_needed(tmp_path / "absent", state_dir=tmp_path)
    assert settings.state_dir == tmp_path and "absent" in warning
