"""MkDocs hook: pages that the repository shows as they are, as Python's Markdown has to have them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from links import absolute  # of scripts, which scripts/docs puts on the path

ROOT = Path(__file__).resolve().parents[2]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text: links out of ``docs``, and to folders, lead to the repository; the rest MkDocs checks.

    What belongs to an item of a numbered list is indented by 3 in the pages, and must be by 4 here.
    """
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [re.sub(r"^(?= {3})", " ", part, flags=re.MULTILINE) for part in parts[::2]]
    markdown = "".join(parts)
    folder = (Path("docs") / page.file.src_uri).parent
    docs = ROOT / "docs"
    return absolute(
        markdown,
        *(ROOT, folder, os.environ["REPOSITORY"], "main"),
        keep=lambda target: target.is_relative_to(docs) and target.is_file(),
    )
