"""What a host keeps in its folder for Deno, by names: whoever removes what a killed host has left needs them, too."""

from __future__ import annotations

from typing import Final

from cellblock_worker.base.folders import FILE, Contents

FOLDER_NAME: Final = "deno-dir"

FILLED: Final = "filled"
"""Where a worker without a script makes them."""

SHOWN: Final = "shown"
"""The copies that all others see."""

OF_DENO: Final[Contents] = {
    r"[a-z0-9_]+_cache_v[0-9]+(-wal|-shm|-journal)?": FILE,
    "npm|gen|remote|deps|registries": {},
}
"""Deno's SQLite files, and the folders that it leaves empty here."""

CONTENTS: Final[Contents] = {f"{FILLED}|{SHOWN}": OF_DENO}
"""What is in the folder."""
