"""The published JSON Schema says the same of a configuration as Cellblock does, and the docs' examples are sound."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.settings import CellblockSettings
from cellblock.base.settings.syntax import parse

ROOT = Path(__file__).parents[6]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8"))
CHECKER = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_and_the_reference_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_config_schema.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("raw", "sound"),
    [
        ({}, True),
        ({"$schema": "x", "theme": "dark"}, True),
        ({"mcpServers": {"a": {"command": "x", "alwaysAllow": []}}}, True),
        ({"servers": {"a": {"url": "http://x", "type": "http"}}, "inputs": []}, True),
        ({"mcpServers": {"a": {"command": ""}}}, False),
        ({"mcpServers": {"a": {"command": "x\0"}}}, False),
        ({"mcpServers": {"a": {"command": "x", "args": ["", "y\0"]}}}, False),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": "\0"}}}}, False),
        ({"mcpServers": {"a": {"serverUrl": "http://x"}}}, True),
        ({"cellblock": {"pool": {"warm": 1}, "hosts": {"local": True}}}, True),
        ({"cellblock": {"schemas": {"servers": {"local": {"learn": False}}}}}, True),
        ({"mcpServers": {"a": {}}}, False),
        ({"mcpServers": {"a": {"command": 1}}}, False),
        ({"mcpServers": {"a": {"url": "http://x", "type": "pigeon"}}}, False),
        ({"cellblock": {"pol": {}}}, False),
        ({"cellblock": {"pool": {"warm": -1}}}, False),
        ({"cellblock": {"limits": {"timeout_ms": {"default": 1}}}}, True),
        ({"cellblock": {"limits": {"timeout_ms": 1}}}, True),
        ({"cellblock": {"limits": {"timeout_ms": "1"}}}, False),
        ({"cellblock": {"schemas": {"servers": {"local": {"lern": True}}}}}, False),
    ],
    ids=str,
)
def test_schema_and_program_agree(raw: dict[str, Any], sound: bool) -> None:
    assert CHECKER.is_valid(raw) is sound
    if sound:
        parse_settings(raw)
    else:
        with pytest.raises(ConfigProblems):
            parse_settings(raw)


def test_every_setting_is_described() -> None:
    bare = [
        f"{name}.{key}"
        for name, definition in SCHEMA["$defs"].items()
        for key, entry in definition["properties"].items()
        if "description" not in entry and "$ref" not in entry and "anyOf" not in entry
    ]
    assert bare == []
    defaults = SCHEMA["$defs"][CellblockSettings.__name__]["properties"]
    assert defaults["typecheck"]["default"] == "after" and "compiler" in defaults["typecheck"]["description"]


def test_the_examples_of_the_page_are_sound() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)```", page, re.S)
    assert examples
    for text in examples:
        raw = parse(text, toml=False)
        CHECKER.validate(raw)
        parse_settings(raw)
