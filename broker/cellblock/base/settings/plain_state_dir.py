"""Reads where a daemon keeps its state from a configuration without the models: importing those takes longer than a
`connect` has before its client's first answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import platformdirs

from cellblock.base.settings.syntax import TOML_SUFFIX, SyntaxFault, parse


def default_state_dir() -> Path:
    return Path(platformdirs.user_state_dir("cellblock"))


def plain_state_dir(path: str) -> Path | None:
    """Returns where a file says that state is kept, or the default; None where that takes more than reading it: the
    file is wrong, or the value is none or has a reference.
    """
    file = Path(path)
    try:
        raw: Any = parse(file.read_text(encoding="utf-8-sig"), toml=file.suffix.lower() == TOML_SUFFIX)
    except (OSError, UnicodeDecodeError, SyntaxFault):
        return None
    section: Any = cast("dict[str, Any]", raw).get("cellblock", {}) if isinstance(raw, dict) else None
    if not isinstance(section, dict):
        return None
    given: Any = cast("dict[str, Any]", section).get("state_dir")
    if given is None:
        return default_state_dir()
    return Path(given) if isinstance(given, str) and "$" not in given else None
