"""Whose program listens on a port, as the kernel says."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import closing

import pytest

from cellblock.frontend.relay.channel import Unreached
from cellblock.frontend.relay.listeners import Stranger, refuse_strangers
from cellblock.frontend.relay.local_http import LocalHttp
from support.waits import within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose sockets there are")

PLACES = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1"),
    "any": (socket.AF_INET, "0.0.0.0"),
    "::1": (socket.AF_INET6, "::1"),
    "any of both": (socket.AF_INET6, "::"),
}


def listening(place: str) -> socket.socket:
    family, host = PLACES[place]
    made = socket.socket(family)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, 0))
    made.listen()
    return made


@pytest.mark.parametrize("place", PLACES)
def test_ones_own_program_is_no_stranger(place: str) -> None:
    reached = ["::1"] if place == "::1" else ["127.0.0.1"] + ["::1"] * (place == "any of both")
    with listening(place) as own:
        port = own.getsockname()[1]
        for host in reached:
            refuse_strangers(host, port)
    with pytest.raises(Unreached):
        refuse_strangers(reached[0], port)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
@pytest.mark.parametrize("place", PLACES)
async def test_another_users_program_is_sent_nothing(place: str) -> None:
    os.seteuid(4711)
    try:
        theirs = listening(place)
    finally:
        os.seteuid(0)
    came: list[bytes] = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read())
        writer.close()

    host = "[::1]" if place == "::1" else "127.0.0.1"
    async with await asyncio.start_server(read, sock=theirs):
        url = f"http://{host}:{theirs.getsockname()[1]}/mcp"
        with (
            closing(LocalHttp({"authorization": "Bearer t"}, own=True)) as channel,
            pytest.raises(Stranger, match="uid 4711"),
        ):
            async with channel.ask("HEAD", url):
                pass
        while not came:
            await within(asyncio.sleep(0))
    assert came == [b""]
