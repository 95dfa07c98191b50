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
from cellblock.base.settings.settings import Settings

StateDir = Path | Literal["user"] | None
"""Names a folder, the user's own, or None: what the configuration names, else a private one."""

_HINT: Final = (
    'Give the broker a state_dir: a folder of the program\'s own, or "user" for that of the command line. '
    "Or set cellblock.state_dir."
)


class BrokerState:
    """Names a broker's state directory in every configuration that it takes over.

    Args:
        wanted: What the program wants.
    """

    def __init__(self, wanted: StateDir) -> None:
        self._wanted = wanted
        self._private: Path | None = None

    def named_in(self, settings: Settings) -> Settings:
        """Returns the settings with the state directory.

        Raises:
            ConfigError: They want something that must outlive a private one.
        """
        section = settings.cellblock
        if self._wanted is not None:
            named = self._wanted if isinstance(self._wanted, Path) else settings.state_dir
            section = section.model_copy(update={"state_dir": named})
        if section.state_dir is not None:
            return settings.model_copy(update={"cellblock": section})
        if section.audit.enabled:
            raise ConfigError("The audit log would be removed with the broker's private state.", hint=_HINT)
        if section.journal.keeps and not section.state.is_shared:
            raise ConfigError("The kept runs would be removed with the broker's private state.", hint=_HINT)
        if "quarantine" in section.pins.values() and not section.state.is_shared:
            said = "cellblock.pins would hold definitions against nothing: the broker's private state begins empty."
            raise ConfigError(said, hint=_HINT)
        if self._private is None:
            # Nobody else can know its name.
            self._private = Path(tempfile.gettempdir()) / f"cellblock-{secrets.token_hex(16)}"
        # Overlays are the user's word, which is only read: "destructive" must not be lost with the folder.
        schemas = section.schemas.model_copy(update={"overlays": settings.overlay_dir})
        section = section.model_copy(update={"state_dir": self._private, "schemas": schemas})
        return settings.model_copy(update={"cellblock": section})

    def make(self, state_dir: Path, stack: contextlib.AsyncExitStack) -> None:
        """Makes the folder if it is the private one; `stack` removes it then. Raises OSError."""
        if state_dir == self._private:
            state_dir.mkdir(mode=0o700)
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, state_dir, True)
