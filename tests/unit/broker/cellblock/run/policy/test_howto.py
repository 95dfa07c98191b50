"""The examples of docs/howto-policy.md are what the broker takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cellblock.app.config.load import parse_settings
from cellblock.base.settings.settings import CellblockSettings
from cellblock.run.policy import counts, rules
from cellblock.run.policy.policy import Policy
from cellblock.run.request import read_request

PAGE = Path(__file__).parents[6] / "docs" / "howto-policy.md"


def test_every_example_is_accepted() -> None:
    text = PAGE.read_text(encoding="utf-8")
    configuration, request, bounds = (
        json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    )
    settings = parse_settings(configuration)
    policy = Policy(settings.cellblock.policy, settings.servers)
    assert policy.grants_of("oauth:4f1c-ann") is None
    assert (
        parse_settings({"mcpServers": {}, "cellblock": bounds})
        .cellblock.policy.quotas["token:ci"]["billing.*"]
        .strict
    )
    assert read_request(request, CellblockSettings()).grants is not None


def test_every_code_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sources = (Path(str(module.__file__)).read_text(encoding="utf-8") for module in (rules, counts))
    codes = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', "".join(sources)))
    assert len(codes) >= 8
    assert codes == set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE))


def test_the_defaults_are_those_of_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"| `approval_timeout_ms` | {CellblockSettings().policy.approval_timeout_ms:,} |" in text
