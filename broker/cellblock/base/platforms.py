"""Platforms ends a first run with one sentence where Cellblock does not run, before anything else fails there."""

from __future__ import annotations

import contextlib
import sys


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
