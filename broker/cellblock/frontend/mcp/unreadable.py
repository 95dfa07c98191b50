"""Words for a client that a parked run cannot be reached at the moment."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import mcp_types as types
from mcp import MCPError

from cellblock.base.database import StoreError
from cellblock.journal.replies import WrongAnswer

logger = logging.getLogger("cellblock.frontend")


@contextlib.contextmanager
def unreadable() -> Generator[None]:
    """Words what the journals' file raises for a client, who may come back later, also with another answer."""
    try:
        yield
    except WrongAnswer as error:
        raise MCPError(types.INVALID_PARAMS, f"{error.message} {error.hint}") from None
    except StoreError as error:
        logger.warning("a parked run cannot be reached: %s", error)
        raise MCPError(
            types.INTERNAL_ERROR,
            "The run is parked and cannot be reached at the moment; nothing of it is lost. Try again.",
        ) from None
