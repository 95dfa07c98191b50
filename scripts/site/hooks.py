"""MkDocs hook: links to files outside of ``docs``, and to folders, lead to the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from links import absolute  # of scripts, which scripts/docs puts on the path

ROOT = Path(__file__).resolve().parents[2]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text with those links made absolute; what is in ``docs`` MkDocs checks itself."""
    folder = (Path("docs") / page.file.src_uri).parent
    docs = ROOT / "docs"
    return absolute(
        markdown,
        *(ROOT, folder, os.environ["REPOSITORY"], "main"),
        keep=lambda target: target.is_relative_to(docs) and target.is_file(),
    )
