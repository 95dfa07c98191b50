"""Versions says which versions of packages are installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed(package: str) -> str:
    """Gives the version of an installed package; empty where it is not known."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
