"""What the web server logs of requests that are cancelled at the end: nothing; of all else, what it would."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from uvicorn import server

from cellblock.observe.libraries import tame_libraries
from cellblock.serve.http.server import cancellations_unsaid

FAILED = "Exception in ASGI application\n"
CANCELLED = "Cancel %s running task(s), timeout graceful shutdown exceeded"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (FAILED, asyncio.CancelledError(), False),
        (FAILED, ValueError("x"), True),
        (FAILED, None, True),
        (CANCELLED, None, False),
    ],
)
def test_only_cancellations_are_left_out(
    text: str, error: BaseException | None, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # As in a daemon: libraries are tamed before there is a front-end.
    tame_libraries()
    logger = logging.getLogger("uvicorn.error")
    values = (1,) if "%" in text else ()
    with cancellations_unsaid():
        try:
            if error is not None:
                raise error
        except (asyncio.CancelledError, ValueError):
            exception = sys.exc_info()
        else:
            exception = None
        logger.handle(
            logger.makeRecord(logger.name, logging.ERROR, server.__file__, 1, text, values, exception)
        )
    assert bool(caplog.records) == said
    before = len(logger.filters)
    with cancellations_unsaid():
        assert len(logger.filters) == before + 1
    assert len(logger.filters) == before


def test_what_is_left_out_is_what_uvicorn_says() -> None:
    assert CANCELLED in Path(server.__file__).read_text("utf-8")
