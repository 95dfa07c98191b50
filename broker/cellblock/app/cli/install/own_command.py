"""Own_command finds the command by which another program starts this very Cellblock."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Final

_RUNNERS: Final = (
    (re.compile(r"/uv/(?:archive|environments|builds)-v\d+/"), ("uvx", "cellblock")),
    (re.compile(r"/pipx/\.cache/|/\.cache/pipx/"), ("pipx", "run", "cellblock")),
)
"""Matches where programs are kept that were only to run once, and what runs them again."""


def own_command() -> tuple[str, ...]:
    """Returns an absolute path and first arguments: clients with windows do not have a shell's PATH."""
    for place, (runner, *words) in _RUNNERS:
        if place.search(f"{sys.prefix}/") and (found := shutil.which(runner)):
            return (found, *words)
    started = shutil.which(sys.argv[0]) if sys.argv[0] else None
    if started is not None and os.path.basename(started) == "cellblock":  # noqa: PTH119
        # Not where a link leads: the link stays when a new version is installed.
        return (os.path.abspath(started),)  # noqa: PTH100
    return (sys.executable, "-m", "cellblock.cli")
