"""Settings that are no more: a file that names them is read, and told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.formats import value_at
from cellblock.app.config.load import load_settings
from cellblock.app.config.removed import REMOVED, without_removed
from cellblock.base.settings.problems import keys_at
from cellblock.base.settings.settings import CellblockSettings


def section_of(setting: str, value: object) -> dict[str, Any]:
    made: Any = value
    for key in reversed(setting.replace("*", "some").split(".")):
        made = {key: made}
    return made


@pytest.mark.parametrize("setting", REMOVED)
def test_each_is_no_setting_any_more(setting: str) -> None:
    path = ("cellblock", *setting.replace("*", "some").split("."))
    said = REMOVED[setting]
    value = "?" if isinstance(said, str) else said.value
    left, [problem] = without_removed(section_of(setting, value), path[:1])
    assert (problem.path, problem.severity) == (path, "warning")
    assert value_at(left, path[1:]) is None
    if not isinstance(said, str):
        _, [problem] = without_removed(section_of(setting, "?"), path[:1])
        assert (problem.path, problem.severity, problem.hint) == (path, "error", said.hint)


@pytest.mark.parametrize("setting", REMOVED)
def test_none_is_in_the_schema(setting: str) -> None:
    *above, key = setting.replace("*", "some").split(".")
    assert key not in keys_at(CellblockSettings, above)


def test_a_removed_setting_is_told_with_its_place_and_what_holds_instead(tmp_path: Path) -> None:
    file = tmp_path / "cellblock.json"
    section = {"upstream": {"retry_first_ms": 10, "call_timeout_ms": 7}}
    file.write_text(json.dumps({"cellblock": section}, indent=1))
    settings = load_settings(file)
    assert settings.cellblock.upstream.call_timeout_ms == 7
    assert settings.warnings == (
        f"{file}:4:4: cellblock.tools.upstream.retry_first_ms: no longer a setting; "
        "Cellblock uses 500. Take it out.",
    )
