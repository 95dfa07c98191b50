"""References that stand for nothing: in a server's entry they stop that server alone, in `cellblock` everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellblock.app.cli.checkups import fix_of
from cellblock.app.cli.config_check import check_config
from cellblock.app.config.load import load_settings
from cellblock.base.errors import ConfigError
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.login import place_of

FILE = """{"mcpServers": {
  "a": {"command": "x", "args": ["${env:NONE_1}", "${NONE_2}"], "type": "${NONE_1}"},
  "b": {"url": "${env:NONE_3}", "headers": {"A": "${file:none}"}},
  "c": {"command": "y", "env": {"KEY": "${HERE}"}}},
 "cellblock": {"pins": {"servers": {"a": "off"}}, "auth": {"servers": {"b": {}}},
  "upstream": {"servers": {"b": {"call_timeout_ms": 5}}}, "schemas": {"servers": {"a": {}}}}}"""


def test_all_of_them_are_told_at_once_and_stop_their_own_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "hunter2-here")
    file = tmp_path / "c.json"
    file.write_text(FILE)
    settings = load_settings(file)
    assert {name: config.missing for name, config in settings.servers.items()} == {
        "a": "the environment variable NONE_1 is not set; the environment variable NONE_2 is not set",
        "b": f"the environment variable NONE_3 is not set; {tmp_path}/none cannot be read: No such file or directory",
        "c": None,
    }
    assert settings.servers["c"].env == {"KEY": "hunter2-here"}
    places = [warning.partition(": ${")[0].removeprefix(f"{file}:") for warning in settings.warnings]
    assert places == [
        "2:34: mcpServers.a.args.0",
        "2:51: mcpServers.a.args.1",
        "2:73: mcpServers.a.type",
        "3:16: mcpServers.b.url",
        "3:50: mcpServers.b.headers.A",
    ]
    assert "Set NONE_1 where Cellblock is started" in settings.warnings[0]
    assert "Until then the server a is not started." in settings.warnings[0]
    # A secret that is made later is seen: its place is watched.
    assert settings.files == (tmp_path / "none",)
    checked = check_config(file)
    assert not checked.errors and checked.sentences() == [*settings.warnings]
    assert checked.servers == {"a": "not started", "b": "not started", "c": "stdio"}
    with pytest.raises(ConfigError, match=r"b cannot be reached: .*NONE_3 is not set"):
        place_of("b", settings.servers, settings.cellblock.auth, LocalStore(settings.state_dir))
    assert "Set it where" in fix_of(settings.servers["a"], "", tmp_path)


@pytest.mark.parametrize(
    "section",
    [
        {"policy": {"clients": {"oauth:${NONE}": {}, "cli": {"tools": ["${env:NONE}"]}}}},
        {"http": {"allowed_hosts": ["${file:none}"]}},
        {"auth": {"servers": {"b": {"issuer": "https://x.example", "client_id": "${NONE}"}}}},
    ],
)
def test_a_restriction_is_never_left_out(tmp_path: Path, section: object) -> None:
    file = tmp_path / "c.json"
    servers = {"b": {"url": "https://x.example"}, "other": {"command": "${NONE_4}"}}
    file.write_text(json.dumps({"mcpServers": servers, "cellblock": section}))
    with pytest.raises(ConfigError, match=r"cellblock\..*(is not set|cannot be read)"):
        load_settings(file)
    # What is missing elsewhere is listed with it.
    assert any("NONE_4" in sentence for sentence in check_config(file).sentences())
