"""Platforms says where Cellblock runs. The build asks before it fetches anything, and the command at its first run."""

from __future__ import annotations

import importlib.machinery
import platform
import sys
from collections.abc import Sequence
from typing import Final

MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
"""Maps what machines call themselves to the words of npm's packages."""

NAMES: Final = ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64")
"""Names the platforms, as npm's packages do."""


def platform_name(system: str | None = None, machine: str | None = None) -> str:
    """Returns the platform by its name in npm's packages, such as `linux-x64`; it need not be one that is supported."""
    machine = machine or platform.machine()
    return f"{system or sys.platform}-{MACHINES.get(machine.lower(), machine)}"


def refusal(
    system: str | None = None, machine: str | None = None, suffixes: Sequence[str] | None = None
) -> str | None:
    """Returns the one sentence that a user sees where Cellblock does not run; None where it does."""
    system, machine = system or sys.platform, machine or platform.machine()
    if system in ("win32", "cygwin", "msys"):
        return "Cellblock runs on Linux and macOS only: on Windows, install it inside WSL 2."
    if any("-musl" in suffix for suffix in suffixes or importlib.machinery.EXTENSION_SUFFIXES):
        return (
            "Cellblock needs a Linux with glibc, as Deno does: Alpine and others with musl are not supported; "
            "take an image such as python:3.13-slim."
        )
    if platform_name(system, machine) not in NAMES:
        return f"Cellblock runs on Linux and macOS, on x86-64 and ARM64, only: not on {system}, {machine}."
    return None
