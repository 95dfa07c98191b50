"""MkDocs hook: links to files outside of ``docs``, and to folders, lead to the repository."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from links import absolute


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text with those links made absolute; what is in ``docs`` MkDocs checks itself."""
    folder = (Path("docs") / page.file.src_uri).parent
    docs = ROOT / "docs"
    return absolute(
        markdown,
        *(ROOT, folder, os.environ["REPOSITORY"], "main"),
        keep=lambda target: target.is_relative_to(docs) and target.is_file(),
    )
