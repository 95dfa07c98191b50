"""A script's result, as front-ends give it: a large one is passed on as its bytes, checked here and decoded where it
has few values; images and sounds are found in it, as a tool gave them in MCP content blocks."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec
from pydantic_core import from_json, to_json

from cellblock.base import payload
from cellblock.base.budget import Account, Metered, OverBudget
from cellblock.base.json import is_array, is_object
from cellblock.base.raw_json import (
    MANY_CONTAINERS,
    MANY_CONTAINERS_BYTES,
    MOST_VALUES,
    RawJson,
    brackets_of,
    depths,
    has_many_containers,
    next_step,
    values_in,
)
from cellblock.base.visible import visible
from cellblock.run.failure import places_in_stacks
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.script.source import Script

DECODED_BYTES: Final = 4 * 1024 * 1024
"""Bounds the results that are decoded to be read."""

STEP_BYTES: Final = 1024 * 1024
"""Bounds what is spelled, and the brackets that are counted, in one step."""

STEP_CHARS: Final = 32 * 1024
"""Bounds the characters of a text that are made visible in one step."""

_BUT_CONTROLS: Final = bytes(range(32, 256))

MAX_BLOCKS: Final = 8
"""Bounds the blocks of one response."""

MAX_CHARS: Final = 4 * 1024 * 1024
"""Bounds the base64 of all blocks of one response; a block that is over it stays where it is."""

MAX_LEVELS: Final = 16
"""Bounds how deep a block is looked for."""

MAX_VALUES: Final = 10_000
"""Bounds the values that are looked at."""

MARK: Final = "mimeType"
"""Names a key that every block has: a result without it needs no search."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]++={0,2}")
_AUDIO: Final = re.compile(r"audio/[a-z0-9][a-z0-9.+-]{0,60}")

_IMAGES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.S),
}
"""Maps the types of images that the APIs of models take to how such an image begins: for another one, or one that is
not what it says, they refuse the whole conversation."""


class Media(NamedTuple):
    """Media is one image or sound: the type of its block, its MIME type, and its base64."""

    type: Literal["image", "audio"]
    mime_type: str
    data: str

    @property
    def url(self) -> str:
        """Returns the image or sound as a `data:` URL."""
        return f"data:{self.mime_type};base64,{self.data}"


def taken_out(value: Any) -> tuple[Any, list[Media]]:
    """Returns a result with words in the place of the base64 of its images and sounds, and these.

    The value itself is not changed. It is the same object when there are none.
    """
    found: list[Media] = []
    left = [MAX_CHARS, MAX_VALUES]

    def without(one: Any, levels: int) -> Any:
        if levels == 0 or left[1] <= 0:
            return one
        if is_array(one):
            left[1] -= len(one)
            return [without(item, levels - 1) for item in one]
        if not is_object(one):
            return one
        left[1] -= len(one)
        if len(found) < MAX_BLOCKS and (media := _media(one)) is not None and len(media.data) <= left[0]:
            found.append(media)
            left[0] -= len(media.data)
            size = len(media.data.rstrip("=")) * 3 // 4
            said = f"[{media.mime_type}, {size:,} bytes: {media.type} block {len(found)} of this response]"
            return {**one, "data": said}
        return {key: without(item, levels - 1) for key, item in one.items()}

    shown = without(value, MAX_LEVELS)
    return (shown, found) if found else (value, found)


def _media(block: dict[str, Any]) -> Media | None:
    kind, data, mime_type = block.get("type"), block.get("data"), block.get(MARK)
    if kind not in ("image", "audio") or not isinstance(data, str) or not isinstance(mime_type, str):
        return None
    if len(data) % 4 or _BASE64.fullmatch(data) is None:
        return None
    begins = _IMAGES.get(mime_type)
    if kind == "image":
        is_one = begins is not None and begins.match(base64.b64decode(data[:16])) is not None
    else:
        is_one = _AUDIO.fullmatch(mime_type) is not None
    return Media(kind, mime_type, data) if is_one else None


class Spelled(NamedTuple):
    """Says how a front-end gives a result: as text within a JSON text, without quotes, or as a document to be kept.

    Attributes:
        text: As a model reads it.
        shown: The result's JSON with words in the place of images and sounds; None where it has none.
        document: The result's JSON, in the place of the text where that is too long.
        media: The images and sounds that are not in the text.
    """

    text: bytes | None
    shown: bytes | None
    document: bytes | None
    media: list[Media]


@dataclass(frozen=True, slots=True)
class LargeResult(RawJson):
    """Holds the result of a run, which its client is billed for.

    Attributes:
        account: Of the run.
    """

    account: Account = field(kw_only=True)

    async def spelled(self, most: int | None, *, with_media: bool = False, as_json: bool = False) -> Spelled:
        """Spells the result as text, or as a document where its JSON has over `most` bytes.

        Args:
            most: Bounds the JSON; None: it may have any size.
            with_media: Whether words stand for images and sounds in the text.
            as_json: Whether a string is spelled as JSON, too.

        Raises:
            OverBudget: The client has too many large bodies in memory.
        """
        with self.account.holding(len(self.raw)):
            shown, media = None, list[Media]()
            if with_media and b'"%s"' % MARK.encode() in self.raw and values_in(self.raw) <= MOST_VALUES:
                value, media = taken_out(self.decoded())
                await next_step()
                shown = to_json(value) if media else None
            raw = shown or self.raw
            if most is not None and len(raw) > most:
                return Spelled(None, None, self.raw, [])
            spell = _spelled_json if as_json or raw[:1] != b'"' else _spelled_text
            pieces: list[bytes] = []
            for piece in spell(raw):
                pieces.append(piece)
                await next_step()
            return Spelled(b"".join(pieces), shown, None, media)


def _spelled_json(raw: bytes) -> Iterator[bytes]:
    for start in range(0, len(raw), STEP_BYTES):
        yield raw[start : start + STEP_BYTES].replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _spelled_text(raw: bytes) -> Iterator[bytes]:
    text: str = from_json(raw)
    for start in range(0, len(text), STEP_CHARS):
        yield to_json(result_text(text[start : start + STEP_CHARS]))[1:-1]


class UnreadableResult(Exception):
    """Tells that a run has no result that can be read; `diagnostic` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


async def read_result(body: bytes, script: Script, account: Account) -> LargeResult:
    """Reads a result as the well-formed JSON that it is, in steps: others have their turn between them.

    Args:
        body: What the worker sent.
        script: Names places in stacks.
        account: Of the run.

    Raises:
        UnreadableResult: It is no JSON, too deep, or too much.
    """
    try:
        with account.holding(len(body)):
            await next_step()
            with Metered(account):
                body = places_in_stacks(body, script)
            await next_step()
            is_little = len(body) <= DECODED_BYTES and values_in(body) <= MOST_VALUES
            await next_step()
            if not is_little:
                await _check(body, account)
            else:
                with Metered(account):
                    value = payload.decode(body)
                await next_step()
                with Metered(account):
                    body = to_json(value)
    except OverBudget as error:
        why = "Return less, or run fewer scripts with large results at a time."
        raise UnreadableResult(not_read(f"The result could not be read: {error}.", why)) from None
    except payload.PayloadError as error:
        raise UnreadableResult(not_json(str(error))) from None
    return LargeResult(body, account=account)


async def _check(body: bytes, account: Account) -> None:
    """Checks JSON that is too much to be decoded: linear native code looks at its bytes.

    Raises:
        PayloadError: It is none that every reader reads the same way, or too deep.
    """
    try:
        for check in (_has_few_containers, _has_no_controls, _is_json, _is_text, _has_whole_characters):
            await next_step()
            with Metered(account):
                check(body)
    except payload.PayloadError:
        raise
    except (ValueError, RecursionError) as error:
        raise payload.PayloadError(f"no JSON: {error}") from None
    await next_step()
    with Metered(account):
        brackets = brackets_of(body)
    depth = 0
    for start in range(0, len(brackets), STEP_BYTES):
        await next_step()
        with Metered(account):
            deepest, depth = depths(brackets[start : start + STEP_BYTES], depth)
        if deepest > payload.MAX_DEPTH:
            raise payload.PayloadError(f"nested deeper than {payload.MAX_DEPTH} levels")


def _has_few_containers(body: bytes) -> None:
    if has_many_containers(body):
        why = f"over {MANY_CONTAINERS_BYTES} bytes with over {MANY_CONTAINERS} arrays and objects"
        raise payload.PayloadError(why)


def _has_no_controls(body: bytes) -> None:
    # No worker writes them; within texts they are not allowed.
    if body.translate(None, _BUT_CONTROLS):
        raise payload.PayloadError("no JSON: it has control characters")


def _is_json(body: bytes) -> None:
    msgspec.json.decode(body, type=msgspec.Raw)


def _is_text(body: bytes) -> None:
    if not body.isascii():
        body.decode()


def _has_whole_characters(body: bytes) -> None:
    bare = body.replace(b"\\\\", b"") if b"\\u" in body else b""
    if b"\\ud" in bare or b"\\uD" in bare:
        raise payload.PayloadError("no well-formed text everywhere: it has half characters")


def compact(value: object) -> str:
    """Returns JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def result_text(value: object) -> str:
    """Returns a result as a model reads it: a string as it is, anything else as JSON."""
    return visible(value, instead=None, keep="\n\t") if isinstance(value, str) else compact(value)


def document(value: object) -> bytes:
    """Returns JSON data as it is kept."""
    # A lone surrogate has no UTF-8; backslashreplace makes of it what JSON writes for it.
    return compact(value).encode("utf-8", "backslashreplace")


def not_json(why: str) -> Diagnostic:
    """Says that the result is no JSON."""
    return error_diagnostic(
        "RESULT_NOT_JSON", f"The result is {why}.", "Assign plain JSON data to __codemode_result__."
    )


def not_read(message: str, hint: str) -> Diagnostic:
    """Says that the result was not read; the script has run to its end."""
    return error_diagnostic("RESULT_NOT_READ", f"{message} The script has run to its end.", hint)
