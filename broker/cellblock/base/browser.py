"""Opens addresses with one-time secrets in the person's browser. Every local user can read command lines, so a browser
gets the name of a private file that leads to the address.
"""

from __future__ import annotations

import html
import webbrowser
from pathlib import Path

from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import write_private


def open_privately(folder: Path, name: str, url: str) -> None:
    """Opens a URL by a file of this name, which stays; may wait for the browser.

    Raises:
        OSError: The file cannot be written.
    """
    address = html.escape(url)
    page = (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Go on</a>\n'
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Folder.named(folder) as opened:
        write_private(opened, name, page.encode())
    webbrowser.open((folder / name).absolute().as_uri())
