"""The sandbox's decoder on the same streams, many in one Deno process, and where the two may differ."""

import base64
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import deno

from cellblock_worker.wire.frames import FrameError, encode_frame, pack_header
from fuzz.oracle import Outcome, Violation

SANDBOX: Final = Path(__file__).parents[2] / "worker_runtime" / "sandbox"
BOUND_SECONDS: Final = 120.0
MOST_ENTRIES: Final = 15
"""Of a header in the sandbox's subset of msgpack: one flat map of strings, booleans, null and integers."""

PROGRAM: Final = """
import { encodeFrame, takeFrames } from "SANDBOX/wire/frames.ts";
const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const textOf = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const answers = JSON.parse(await new Response(Deno.stdin.readable).text()).map((text) => {
  const stream = bytesOf(text);
  const frames = [];
  try {
    const { used } = takeFrames(stream, stream.length, (header, body) => {
      frames.push([header, textOf(body), textOf(encodeFrame(header, body))]);
    });
    return { frames, pending: stream.length - used };
  } catch (error) {
    return { frames, error: error.name };
  }
});
console.log(JSON.stringify(answers));
"""

ERRORS: Final = {"RangeError", "TypeError"}
"""What the sandbox's decoder throws: its own, and TextDecoder's for what is no UTF-8."""


def answered(text: str, given: Any) -> Any:
    """What a program in Deno says in JSON of what it is given in JSON; SANDBOX is the folder of the sandbox."""
    with tempfile.TemporaryDirectory(prefix="cellblock-fuzz-") as folder:
        program = Path(folder) / "program.ts"
        program.write_text(text.replace("SANDBOX", SANDBOX.as_uri()), encoding="utf-8")
        done = subprocess.run(
            [deno.find_deno_bin(), "run", "--quiet", "--no-config", "--no-remote", "--no-npm", str(program)],
            input=json.dumps(given),
            env={"NO_COLOR": "1", "DENO_DIR": str(Path(folder) / "deno")},
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[:2000])
    return json.loads(done.stdout)


def decode(streams: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the sandbox makes of each stream: `frames` as [header, body, frame again], `pending` bytes, or `error`."""
    return answered(PROGRAM, [base64.b64encode(stream).decode() for stream in streams])


def agree(stream: bytes, host: Outcome, sandbox: dict[str, Any]) -> bool:
    """Compares the two decoders on one stream. Returns whether both accepted all of it.

    What the sandbox accepts, the host accepts, with the same frames; what the host accepts and writes itself in the
    sandbox's subset, the sandbox accepts. The host's own msgpack knows more types, and the host alone has a cap.

    Raises:
        Violation: They differ.
    """
    error = sandbox.get("error")
    if error is not None:
        if error not in ERRORS:
            raise Violation(f"the sandbox throws {error}", stream)
        if host.error is None and all(_is_plain(frame.header, frame.raw_header) for frame in host.frames):
            raise Violation(f"the sandbox refuses with {error} what the host accepts", stream)
        return False
    if host.error is not None:
        if "over" in host.error:
            return False
        raise Violation(f"the sandbox accepts what the host refuses: {host.error}", stream)
    mine = [(frame.header, frame.body) for frame in host.frames]
    theirs = [(header, base64.b64decode(body)) for header, body, _ in sandbox["frames"]]
    if mine != theirs or host.pending != sandbox["pending"]:
        raise Violation(f"the host reads {mine}, the sandbox {theirs}", stream)
    for frame, (_, _, again) in zip(host.frames, sandbox["frames"], strict=False):
        # JavaScript puts keys that are integers in front of others; none of ours is.
        mine_again = encode_frame(pack_header(frame.header), frame.body)
        if base64.b64decode(again) != mine_again and not any(key.isdigit() for key in frame.header):
            raise Violation(f"the sandbox writes {frame.header} in another form", stream)
    return True


def _is_plain(header: dict[str, Any], raw: bytes) -> bool:
    """Whether a header is in the sandbox's subset, in the form in which the host writes it."""
    if len(header) > MOST_ENTRIES:
        return False
    for value in header.values():
        plain = value is None or isinstance(value, bool | str) or (type(value) is int and 0 <= value < 2**53)
        if not plain:
            return False
    try:
        return pack_header(header) == raw
    except FrameError:
        return False
