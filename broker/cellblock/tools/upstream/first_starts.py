"""Waits for servers whose programs install them when they start (`npx`, `uvx`), and says what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from cellblock.tools.upstream.installs import LOOK_SECONDS
from cellblock.tools.upstream.session import UpstreamSession

QUIET_SECONDS: Final = 2.0
"""Passes until anything is said of a server that is being installed: what is installed already takes less."""

TELL_SECONDS: Final = 5.0
"""Passes between two sentences about a server that is being installed."""


async def installed(sessions: Mapping[str, UpstreamSession], tell: Callable[[str], object]) -> None:
    """Waits until those of these servers are connected that are being installed.

    Args:
        sessions: By the server's name.
        tell: Told a sentence of each, every `TELL_SECONDS`.
    """
    now = asyncio.get_running_loop().time
    began: dict[str, float] = {}
    due: dict[str, float] = {}
    while names := [name for name, one in sessions.items() if one.starting and one.installing]:
        for name in names:
            since = now() - began.setdefault(name, now())
            if since >= due.get(name, QUIET_SECONDS):
                due[name] = since + TELL_SECONDS
                so_far = f" ({since:.0f} s)" if since >= 1 else ""
                tell(f"server {name} is being installed by its program{so_far}")
        await asyncio.sleep(LOOK_SECONDS)
    bounds = {name: sessions[name].connect_seconds for name in began}
    await asyncio.gather(*(sessions[name].settled(inf, at_most=bound) for name, bound in bounds.items()))
