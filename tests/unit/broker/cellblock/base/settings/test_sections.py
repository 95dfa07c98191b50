"""Settings of large outputs: what cannot work is refused with what to change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import MIB, CellblockSettings, OutputSettings

PAGE = Path(__file__).parents[6] / "docs" / "howto-big-outputs.md"


def parse(outputs: dict[str, Any], **cellblock: Any) -> OutputSettings:
    return parse_settings({"cellblock": {**cellblock, "outputs": outputs}}).cellblock.outputs


def test_off_by_default() -> None:
    assert CellblockSettings().outputs.inline_bytes is None


def test_one_client_has_a_quarter() -> None:
    assert parse({"inline_bytes": 100_000}).client_bytes == 64 * MIB


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"inline_bytes": 10}, "outputs.inline_bytes"),
        ({"total_bytes": 1024}, "outputs.total_bytes"),
        ({"inline": 5_000}, "outputs.inline"),
    ],
)
def test_what_cannot_work_is_refused(outputs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(outputs)


def test_a_preview_is_no_longer_than_half_of_what_fits() -> None:
    assert parse({"inline_bytes": 1_024}).shown_bytes == 512
    assert parse({"inline_bytes": 100_000}).shown_bytes == 2_000


def test_the_page_says_what_the_code_does() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (example,) = (
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        if "mcpServers" in block
    )
    assert parse_settings(example).cellblock.outputs.inline_bytes == 100_000
    for name in OutputSettings.model_fields:
        default = getattr(OutputSettings(), name)
        shown = "absent: off" if default is None else f"{default:,}"
        assert f"| `{name}` | {shown} |" in text
