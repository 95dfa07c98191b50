"""Finds the native TypeScript compiler, and starts its process: confined, with an empty environment.

The compiler reads hostile text: the script, and what upstream servers say of their tools. Under bubblewrap its root
holds the compiler, the declarations of the language and two settings files, read-only, without a network. Elsewhere
the settings alone keep it from other files: it resolves no import and no reference (`noResolve`).
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Final, NamedTuple

from cellblock.base.json import is_object
from cellblock_worker.base import lifetime
from cellblock_worker.confinement import bubblewrap, confinement, syscall_lists
from cellblock_worker.launch.launching import SpawnRequest


def _folder() -> Path:
    """Finds where the package `cellblock-typescript` keeps the compiler; a folder that is not there without it."""
    try:
        import cellblock_typescript
    except ImportError:
        return Path(__file__).parent / "no_compiler"
    return cellblock_typescript.FOLDER


FOLDER: Final = _folder()
"""Holds the compiler, the declarations of the language, and `BUILD.json`."""

WORKSPACE: Final = Path(__file__).parent / "workspace"
"""Holds one project for JavaScript and one for TypeScript; the script and the declarations never are on disk."""

BINARY: Final = "tsc"

MEMORY_BOUND_BYTES: Final = 1024 * 1024 * 1024
"""Sets RLIMIT_DATA. Go's heap grows in arenas of 64 MiB; a usual check has 40 MiB resident."""

SOFT_MEMORY_BYTES: Final = 384 * 1024 * 1024
"""Says where Go's collector begins to work hard (GOMEMLIMIT), well below the kernel's bound."""

CPU_BOUND_SECONDS: Final = 600
"""Sets RLIMIT_CPU of one process, which is replaced long before (`checker.MAX_CHECKS`): a backstop behind the timer."""

FIX: Final = "Install cellblock-typescript again, in the version that cellblock needs."

_INSIDE: Final = "/typescript"
_WORKSPACE_INSIDE: Final = "/workspace"


class Launch(NamedTuple):
    """Says how to start one compiler; the order's descriptors must be closed here after the spawn."""

    order: SpawnRequest
    workspace_uri: str
    wrapped: bool


def version(folder: Path = FOLDER) -> str | None:
    """Gives the version of the compiler that `folder` holds, or None when there is none."""
    try:
        info: object = json.loads((folder / "BUILD.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(info.get("typescript")) if os.access(folder / BINARY, os.X_OK) and is_object(info) else None


def why_absent(folder: Path = FOLDER) -> str | None:
    """Says why there is no compiler, or None when there is one."""
    if version(folder) is not None:
        return None
    return f"there is no TypeScript compiler for {sys.platform} on {platform.machine()}"


def can_wrap() -> bool:
    """Says whether there is a bubblewrap to try."""
    return sys.platform.startswith("linux") and bubblewrap.find_binary() is not None


def launch(*, wrapped: bool, folder: Path = FOLDER) -> Launch:
    """Says how to start the compiler as a language server on its standard streams. Raises OSError."""
    env = {"GOMEMLIMIT": str(SOFT_MEMORY_BYTES), "GOTRACEBACK": "none"}
    if not wrapped:
        argv = lifetime.dying_with_this([str(folder / BINARY), "--lsp", "--stdio"])
        return Launch(
            SpawnRequest(argv, env, preexec=lifetime.child_setup()), WORKSPACE.as_uri(), wrapped=False
        )
    binary = bubblewrap.find_binary()
    if binary is None:
        raise FileNotFoundError("there is no bwrap")
    inside = f"{_INSIDE}/{BINARY}"
    arguments = [
        *bubblewrap.NAMESPACES,
        *("--ro-bind", str(folder), _INSIDE, "--ro-bind", str(WORKSPACE), _WORKSPACE_INSIDE),
        # The compiler asks for its own path; there is no /proc.
        *("--symlink", inside, "/proc/self/exe"),
        *("--remount-ro", "/", inside, "--lsp", "--stdio"),
    ]
    program = syscall_lists.filter_program("tsc", version(folder))
    fds = () if program is None else (bubblewrap.open_filter(program),)
    argv = [binary, *(part for fd in fds for part in ("--seccomp", str(fd))), *arguments]
    return Launch(SpawnRequest(argv, env, fds), f"file://{_WORKSPACE_INSIDE}", wrapped=True)


def limit(pid: int) -> None:
    """Puts the kernel's bounds on a live compiler: memory, CPU, files, core dumps. No-op where there is no prlimit."""
    if not sys.platform.startswith("linux"):
        return
    confinement.limit_at_boot(pid)
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BOUND_BYTES, MEMORY_BOUND_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CPU, (CPU_BOUND_SECONDS, CPU_BOUND_SECONDS + 1))
    except ProcessLookupError:
        return
