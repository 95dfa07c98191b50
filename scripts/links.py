"""Links of a page to files of the checkout, made absolute: for a page that is read elsewhere.

Used by the build hook (``scripts/hatch_build.py``), for README as a package index shows it, and by the documentation
site (``scripts/site/hooks.py``), for what is outside of ``docs``. Only the standard library is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

LINK = re.compile(r"""(?P<before>\]\(|\b(?:href|src|srcset)=")(?P<path>[^)"\s#?]+)(?=[)"\s#?])""")
PICTURES = (".gif", ".jpg", ".png", ".svg", ".webp")


def absolute(
    text: str, root: Path, folder: Path, base: str, ref: str, keep: Callable[[Path], bool] = lambda _: False
) -> str:
    """Return ``text``, a page of ``folder`` below ``root``, with its links to existing files led to the repository.

    ``base`` is the repository's address and ``ref`` a tag or branch of it. Links to files that ``keep`` names stay.
    """

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(root / folder / link["path"]))
        if "://" in link["path"] or not target.is_relative_to(root) or not target.exists():
            return link[0]
        if keep(target):
            return link[0]
        kind = "raw" if target.suffix in PICTURES else "tree" if target.is_dir() else "blob"
        return f"{link['before']}{base}/{kind}/{ref}/{target.relative_to(root).as_posix()}"

    return LINK.sub(replaced, text)
