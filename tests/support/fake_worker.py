"""Fake workers: small Python programs that speak the frame protocol on their pipes, as badly as a test wants.

`FakeWorkers` puts them in the place of Deno.
"""

import sys
import textwrap
from pathlib import Path

import msgpack
import pytest

import cellblock_worker
from cellblock_worker.confinement import confinement
from cellblock_worker.wire.protocol import PROTOCOL_VERSION

SITE_FOLDERS = [
    str(Path(cellblock_worker.__file__).parents[1]),
    str(Path(msgpack.__file__).parents[1]),
]

PRELUDE = """
import os, sys, time
from types import SimpleNamespace
sys.path[:0] = {folders!r}
from msgpack import unpackb
from cellblock_worker.wire.frames import FrameDecoder, encode_frame, pack_header

decoder = FrameDecoder(1 << 30)
waiting = []
rehearsals = []

def raw(data):
    while data:
        data = data[os.write(1, data):]

def frame(body=b"", **header):
    raw(encode_frame(pack_header(header), body))

def ready(protocol={version}):
    frame(t="ready", protocol=protocol)

def read():
    while True:
        while not waiting:
            data = os.read(0, 1 << 16)
            if not data:
                time.sleep(600)
            found = decoder.feed(data)
            waiting.extend(SimpleNamespace(header=unpackb(raw), body=body) for raw, body in found)
        frame = waiting.pop(0)
        # The first frame of every worker, which has nothing to warm up here.
        if frame.header["t"] != "warm":
            return frame
        rehearsals.append(frame.body)

def hang():
    time.sleep(600)
"""


class FakeWorkers:
    """Replaces the command line of every worker that is spawned from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, program: str) -> None:
        """Workers run this Python program; `ready`, `read`, `frame`, `raw`, `hang`, `rehearsals` are for it."""
        text = PRELUDE.format(folders=SITE_FOLDERS, version=PROTOCOL_VERSION) + textwrap.dedent(program)
        self.argv([sys.executable, "-I", "-S", "-c", text])

    def argv(self, argv: list[str]) -> None:
        """Workers are this command."""
        self._monkeypatch.setattr(confinement, "plain_argv", lambda max_old_space_mb, script: argv)  # pyright: ignore
