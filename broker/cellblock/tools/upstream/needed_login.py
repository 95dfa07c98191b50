"""Needed_login is what a call waits for whose server wants another login than there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login


@dataclass(frozen=True, slots=True)
class NeededLogin:
    """Implements `base.errors.NeededLogin`.

    Args:
        server: The server's name.
        login: What is known of its login.
        is_ready: Says whether it is connected.
    """

    server: str
    login: Login
    is_ready: Callable[[], bool]

    async def mark(self) -> str:
        """Returns what names the login that there is; empty where there is none."""
        return await self.login.mark()

    async def is_there(self, mark: str) -> bool:
        """Says whether somebody has logged in since, and the server is connected."""
        return self.is_ready() and await self.mark() not in ("", mark)
