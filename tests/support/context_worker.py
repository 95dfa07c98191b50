"""Drives one real worker process that gives each run a V8 context, without a host: one run after the other."""

import base64
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from cellblock_worker.confinement import confinement
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameDecoder, encode_frame
from cellblock_worker.worker.rehearsal import WARM_FRAME

HEAP_MB: Final = 256
READ_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 26


@dataclass(slots=True)
class Outcome:
    """What one run sent: its last message, its result or failure, and its log."""

    kind: str
    value: Any
    logs: list[str] = field(default_factory=list[str])


def module(source: str) -> str:
    """A module's URL, in the form in which the broker sends it."""
    return f"data:application/javascript;base64,{base64.b64encode(source.encode()).decode()}"


class ContextWorker:
    """A booted process, ready for runs; a context manager that kills it.

    One that has ended behind its run's outcome, as after a syntax error, has another one in its place.

    Args:
        bundle: The folder with what it boots from; None: the workers' own.
        seconds: After which a run is killed, as a host does it: its outcome is of the kind `killed`.
    """

    def __init__(self, bundle: Path | None = None, seconds: float = 600.0) -> None:
        self._seconds = seconds
        own, given = str(confinement.BUNDLE_DIR), str(bundle or confinement.BUNDLE_DIR)
        argv = confinement.plain_argv(HEAP_MB, confinement.CONTEXTS_SCRIPT)
        self._argv = [word.replace(own, given) for word in argv]
        self._boot()

    def _boot(self) -> None:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(confinement.WORKER_ENVIRONMENT),
        )
        self._frames = self._read()
        self._send(WARM_FRAME)
        header, _ = next(self._frames, ({"t": "end"}, b""))
        if header["t"] != "ready":
            self._process.kill()
            raise AssertionError(self._process.communicate()[1].decode())

    def __enter__(self) -> "ContextWorker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, source: str, modules: Mapping[str, str] | None = None, *, answer: object = None) -> Outcome:
        """Runs a script in the next context and waits until the process is ready again.

        Args:
            source: The script.
            modules: URLs by specifier.
            answer: What each call is answered with.
        """
        plan = {"main": module(source), "modules": dict(modules or {}), "refused": {}}
        start = protocol.Start(log_bytes=MOST_BYTES, message_bytes=MOST_BYTES, context=True)
        self._send(encode_frame(start.packed(), json.dumps(plan).encode()))
        killer = threading.Timer(self._seconds, self._process.kill)
        killer.start()
        try:
            return self._heard(answer)
        finally:
            killer.cancel()

    def _heard(self, answer: object) -> Outcome:
        logs: list[str] = []
        outcome: Outcome | None = None
        for header, body in self._frames:
            match header["t"]:
                case "log":
                    logs.append(body.decode())
                case "call":
                    reply = protocol.Reply(id=header["id"], ok=True)
                    self._send(encode_frame(reply.packed(), json.dumps(answer).encode()))
                case "done" | "failed":
                    outcome = Outcome(header["t"], json.loads(body) if body else None, logs)
                case "ready":
                    return outcome
        self._process.communicate()
        assert outcome or self._process.returncode == -signal.SIGKILL, "the worker has ended"
        self._boot()
        return outcome or Outcome("killed", None, logs)

    def _send(self, frame: bytes) -> None:
        self._process.stdin.write(frame)
        self._process.stdin.flush()

    def _read(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        decoder = FrameDecoder(MOST_BYTES, lambda _header, _size: True)
        while data := os.read(self._process.stdout.fileno(), READ_BYTES):
            for raw_header, body in decoder.feed(data):
                yield msgpack.unpackb(raw_header), body
