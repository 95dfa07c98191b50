"""Ends a first run with one sentence where Cellblock does not run, before anything else fails there; and says which
versions of packages are installed."""

from __future__ import annotations

import contextlib
import sys
from functools import cache


def refusal() -> str | None:
    """Returns why Cellblock does not run here; None where it does."""
    # Without its package Cellblock is not whole, and its commands say so.
    with contextlib.suppress(ImportError):
        from cellblock_typescript.platforms import refusal as found

        return found()
    return None


def refuse_others() -> None:
    """Ends the program where Cellblock does not run."""
    if why := refusal():
        sys.stderr.write(f"cellblock: {why}\n")
        raise SystemExit(2)


@cache
def installed(package: str) -> str:
    """Gives the version of an installed package; empty where it is not known."""
    # Not at the top: a first run is refused before anything is loaded.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
