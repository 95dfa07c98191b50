"""A rehearsal is run once by a new worker, unheard, before it says that it is ready.

In a fresh process the first read, import, console line, call and result cost several times what the next ones do: V8
compiles, and Deno sets up. A rehearsal has that behind it before a script comes. Where a run waits for the worker
already, it would only wait longer: a rehearsal takes twice what it saves.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import encode_frame


def _module(source: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"


_SERVER: Final = _module(
    """const server = globalThis.__cellblock_boot__.server("rehearsal");
export const call = server.tool("call", "call", 1);
export const __meta__ = server.meta('{"serverId":"rehearsal"}');
"""
)

_SCRIPT: Final = _module(
    f"""import {{ call, __meta__ }} from "{_SERVER}";
console.log("text", 0, [{{ call }}]);
await null;
globalThis.__codemode_result__ = {{ text: __meta__.serverId, list: [0.5, true, null] }};
"""
)


def _warm_frame(**more: bool) -> bytes:
    plan = {"main": _SCRIPT, "modules": {"@codemode/servers/rehearsal": _SERVER}, "refused": {}, **more}
    return encode_frame(protocol.Warm().packed(), json.dumps(plan).encode())


WARM_FRAME: Final = _warm_frame()
"""Holds the first frame of a worker that rehearses. It is in the pipe before Deno has started."""

JOURNAL_FRAME: Final = _warm_frame(journals=True)
"""Holds the first frame of a worker that rehearses a journaled run, too, which takes 0.6 ms: where there are such
runs."""

READY_FRAME: Final = encode_frame(protocol.Warm().packed(), b"")
"""Holds the first frame of a worker that a run waits for."""
