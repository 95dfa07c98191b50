"""Passes on the result of a script that is too large to be decoded on the loop: checked apart, as its bytes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from cellblock.base.errors import CellblockError
from cellblock.base.offload.budget import OverBudget
from cellblock.base.offload.raw import RawJson
from cellblock.base.offload.share import Share
from cellblock.base.offload.task import Task
from cellblock.base.visible import visible
from cellblock.run import payload
from cellblock.run.failure import has_places, places_in_stacks
from cellblock.run.media import Media, taken_out
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.script.source import Script

READ_RESULT: Final = Task(
    work="cellblock.run.large_results:read",
    subject="The result",
    cpu_seconds=10,
)


SPELL_RESULT: Final = Task(
    work="cellblock.run.large_results:spell",
    subject="The result",
    cpu_seconds=10,
)


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
        share: Of the client.
    """

    share: Share = field(kw_only=True)

    async def spelled(self, most: int | None, *, with_media: bool = False, as_json: bool = False) -> Spelled:
        """Spells the result as text, or as a document where that text has over `most` bytes.

        Args:
            most: Bounds the text; None: it may have any size.
            with_media: Whether words stand for images and sounds in the text.
            as_json: Whether a string is spelled as JSON, too.

        Raises:
            OverBudget: The client has too many large bodies in memory.
            CellblockError: As `Apart.do`.
            OSError: No process can be started.
        """
        facts = {"most": most, "media": with_media, "json": as_json}
        with self.share.holding(len(self.raw)):
            answer = await self.share.do(SPELL_RESULT, facts, self.raw)
        spelled, *data = answer.parts
        if answer.facts["over"]:
            return Spelled(None, None, spelled, [])
        media = [
            Media(kind, mime_type, one.decode("ascii"))
            for (kind, mime_type), one in zip(answer.facts["media"], data, strict=False)
        ]
        return Spelled(spelled, data[-1] if media else None, None, media)


class UnreadableResult(Exception):
    """Tells that a run has no result that can be read; `diagnostic` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


async def read_result(body: bytes, script: Script, share: Share) -> LargeResult:
    """Reads a result as the well-formed JSON that it is.

    Args:
        body: What the worker sent.
        script: Names places in stacks.
        share: Of the run's client.

    Raises:
        UnreadableResult: It is no JSON, too deep, or too much for a process.
    """
    parts = [pickle.dumps(script)] if has_places(body) else []
    try:
        with share.holding(len(body)):
            answer = await share.do(READ_RESULT, {}, body, *parts)
    except OverBudget as error:
        why = "Return less, or run fewer scripts with large results at a time."
        raise UnreadableResult(not_read(f"The result could not be read: {error}.", why)) from None
    except CellblockError as error:
        raise UnreadableResult(not_read(error.message, error.hint)) from None
    except OSError as error:
        said = f"No process can be started to read the result ({error})."
        raise UnreadableResult(not_read(said, "Try again in a moment, or return less.")) from None
    if "refused" in answer.facts:
        raise UnreadableResult(not_json(answer.facts["refused"]))
    return LargeResult(answer.parts[0], share=share)


def read(_facts: dict[str, Any], body: bytes, *script: bytes) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Does the work of `READ_RESULT`."""
    if script:
        # Of the broker's own making: it has nothing of the worker in it.
        body = places_in_stacks(body, pickle.loads(script[0]))
    try:
        return {}, [to_json(payload.decode(body))]
    except payload.PayloadError as error:
        return {"refused": str(error)}, []


def spell(facts: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Does the work of `SPELL_RESULT`: as a small result is spelled."""
    value: Any = from_json(raw)
    shown, media = taken_out(value) if facts["media"] else (value, list[Media]())
    text = json.dumps(shown, ensure_ascii=False) if facts["json"] else result_text(shown)
    if facts["most"] is not None and len(text.encode()) > facts["most"]:
        return {"over": True}, [document(value)]
    kinds = [[one.type, one.mime_type] for one in media]
    parts = [to_json(text)[1:-1], *(one.data.encode() for one in media)]
    return {"over": False, "media": kinds}, [*parts, *([document(shown)] if media else [])]


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
