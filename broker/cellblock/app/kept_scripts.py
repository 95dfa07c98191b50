"""Kept scripts in a broker: what is approved becomes a server's tools, and a call of one a run of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from cellblock.base.tasks import in_background
from cellblock.record.scripts.library import Library, entry_of
from cellblock.record.scripts.script_file import BadScript, KeptScript
from cellblock.run.children import Children

if TYPE_CHECKING:
    from cellblock.run.executor import Executor
    from cellblock.tools.upstream.registry import Registry

logger = logging.getLogger("cellblock.scripts")

LOOK_SECONDS: Final = 2.0
"""Separates two looks at what is approved; a call of a script looks for itself."""


class ServedScripts:
    """Follows what a person approves.

    Args:
        library: Has it.
        registry: Offers the scripts as a server.
        executor: Runs them.
    """

    def __init__(self, library: Library, registry: Registry, executor: Executor) -> None:
        self._library, self._registry = library, registry
        self._children = Children(executor.run, self._find, lambda: executor.places)
        self._stamps: dict[str, object] = {}

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Offers what is approved now, and follows it until `stack` ends that."""
        await self._look()
        await stack.enter_async_context(in_background(self._follow(), name="kept scripts"))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        try:
            stamps = await asyncio.to_thread(self._library.stamps)
            if stamps == self._stamps:
                return
            approvals = await asyncio.to_thread(self._library.approvals)
        except (OSError, BadScript) as error:
            logger.warning("the kept scripts cannot be looked at: %s", error)
            return
        self._stamps = stamps
        self._registry.offer_scripts(entry_of(approvals), self._children.call)

    def _find(self, name: str) -> KeptScript | None:
        approval = self._library.approved(name)
        return None if approval is None else approval.script
