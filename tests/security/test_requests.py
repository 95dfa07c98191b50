"""Oversized and malformed `codemode.run` requests: refused with a hint before a worker is used (section 3.2)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker, InvalidRequest
from security.requests import MALFORMED, ODD_BUT_FINE
from support.entries import settings
from support.waits import within


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker without servers."""
    async with Broker(settings(tmp_path_factory.mktemp("requests"))) as started:
        yield started
        await neighbour(started)


async def neighbour(broker: Broker) -> None:
    """What must work whatever was asked before."""
    response = await within(broker.run("globalThis.__codemode_result__ = 6 * 7"))
    assert (response.result, response.diagnostics) == (42, [])


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused(broker: Broker, name: str) -> None:
    request: Any = MALFORMED[name]()
    with pytest.raises(InvalidRequest) as caught:
        await within(broker.run_request(request))
    assert caught.value.hint
    assert len(str(caught.value).encode()) < 1000


@pytest.mark.parametrize("name", ODD_BUT_FINE)
async def test_an_odd_request_is_answered_and_its_neighbour_runs(broker: Broker, name: str) -> None:
    """A response in any case: never an exception from inside, never silence."""
    make, codes = ODD_BUT_FINE[name]
    response, _ = await asyncio.gather(within(broker.run_request(make())), neighbour(broker))
    said = {found.code for found in response.diagnostics}
    assert said <= set(codes) and bool(said) == bool(codes), response.as_json()
