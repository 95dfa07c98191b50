"""Names what a host keeps in its folder for Deno: whoever removes what a killed host has left needs the names, too."""

from __future__ import annotations

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
}
"""Matches Deno's SQLite files, and the folders that it leaves empty here."""

CONTENTS: Final[Contents] = {f"{FILLED}|{SHOWN}": OF_DENO}
"""Tells what is in the host's folder for Deno."""
