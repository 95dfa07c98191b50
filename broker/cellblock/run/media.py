"""Media finds images and sounds in a script's result, as a tool gave them in MCP content blocks, for clients."""

from __future__ import annotations

import base64
import re
from typing import Any, Final, Literal, NamedTuple

from cellblock.base.json import is_array, is_object

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
