"""The menu of the documentation site has each page of docs once, and nothing else."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
SITE: Final = (ROOT / "scripts/site/mkdocs.yml").read_text()


def test_the_menu_and_docs_agree() -> None:
    menu = re.findall(r"^ +- (\S+\.md)$", SITE.partition("\nnav:\n")[2], re.M)
    beside = SITE.partition("\nnot_in_nav: |\n")[2].partition("\n\n")[0].split()
    docs = ROOT / "docs"
    pages = [str(file.relative_to(docs)) for file in docs.rglob("*.md")]
    assert sorted(menu) == sorted(page for page in pages if not any(fnmatch(page, one) for one in beside))
