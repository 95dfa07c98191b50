"""What the web server logs of requests that are cancelled at the end: nothing; of all else, what it would."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cellblock.frontend.http.server import CancellationsUnsaid


@pytest.mark.parametrize(
    ("error", "said"), [(asyncio.CancelledError(), False), (ValueError("x"), True), (None, True)]
)
def test_only_cancellations_are_left_out(
    error: BaseException | None, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("uvicorn.error")
    unsaid = CancellationsUnsaid()
    logger.addFilter(unsaid)
    try:
        logger.error("Exception in ASGI application\n", exc_info=error)
    finally:
        logger.removeFilter(unsaid)
    assert ("Exception in ASGI application" in caplog.text) == said
