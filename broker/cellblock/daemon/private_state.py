"""Gives a program's broker a state directory of its own, which ends with it, where neither the program nor the
configuration names one.

The user's own is shared with the command line and every daemon: a program that has not asked for it must not change
what those have learnt and approved, nor use their logins.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final, Literal

from cellblock.base.errors import ConfigError
from cellblock.config.settings import Settings

StateDir = Path | Literal["user"] | None
"""Names a folder, the user's own, or None: what the configuration names, else a private one."""

_HINT: Final = (
    'Give the broker a state_dir: a folder of the program\'s own, or "user" for that of the command line. '
    "Or set cellblock.state_dir."
)


class PrivateState:
    """Names a folder that nobody else can know, and makes it when the broker begins.

    Args:
        settings: Of the broker.

    Raises:
        ConfigError: They want something that must outlive the broker.
    """

    def __init__(self, settings: Settings) -> None:
        self._check(settings)
        self._path = Path(tempfile.gettempdir()) / f"cellblock-{secrets.token_hex(16)}"

    def named_in(self, settings: Settings) -> Settings:
        """Returns the settings with this folder, unless they name one. Raises ConfigError as the constructor."""
        section = settings.cellblock
        if section.state_dir is not None:
            return settings
        self._check(settings)
        # Overlays are the user's word, which is only read: "destructive" must not be lost with the folder.
        schemas = section.schemas.model_copy(update={"overlays": settings.overlay_dir})
        section = section.model_copy(update={"state_dir": self._path, "schemas": schemas})
        return settings.model_copy(update={"cellblock": section})

    def make(self, stack: contextlib.AsyncExitStack) -> None:
        """Makes the folder; `stack` removes it. Raises OSError."""
        self._path.mkdir(mode=0o700)
        stack.push_async_callback(asyncio.to_thread, shutil.rmtree, self._path, True)

    @staticmethod
    def _check(settings: Settings) -> None:
        section = settings.cellblock
        if section.audit.enabled:
            raise ConfigError("The audit log would be removed with the broker's private state.", hint=_HINT)
        if {section.pins.reaction, *section.pins.servers.values()} - {"off", "warn"}:
            said = "cellblock.pins would hold definitions against nothing: the broker's private state begins empty."
            raise ConfigError(said, hint=_HINT)


def state_of(settings: Settings, wanted: StateDir) -> tuple[Settings, PrivateState | None]:
    """Returns the settings with the state directory that a program wants, and the private one where it is that.

    Raises:
        ConfigError: They want something that a private one cannot keep.
    """
    named = settings.with_state_dir(settings.state_dir if wanted == "user" else wanted)
    if named.cellblock.state_dir is not None:
        return named, None
    private = PrivateState(named)
    return private.named_in(named), private
