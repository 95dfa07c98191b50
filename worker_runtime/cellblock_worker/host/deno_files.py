"""Names what a host keeps in its folder for Deno: whoever removes what a killed host has left needs the names, too."""

from __future__ import annotations

import stat
from typing import Final

from cellblock_worker.base.folders import FILE, Contents

FOLDER_NAME: Final = "deno-dir"

FILLED: Final = "filled"
"""Names the folder where a worker without a script makes the files."""

SHOWN: Final = "shown"
"""Names the folder of the copies that all other workers see."""

OF_DENO: Final[Contents] = {
    r"[a-z0-9_]+_cache_v[0-9]+(-wal|-shm|-journal)?": FILE,
    "npm|gen|remote|deps|registries": {},
    "node_compat_bin": {"node": stat.S_IFLNK},
}
"""Matches Deno's SQLite files, the folders that it leaves empty here, and what it makes where it loads Node's parts."""

CONTENTS: Final[Contents] = {f"{FILLED}|{SHOWN}": OF_DENO}
"""Tells what is in the host's folder for Deno."""
