"""Images and sounds in a result: which are taken for that, what stands in their place, and the bounds."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cellblock.run import media
from cellblock.run.media import Media, taken_out

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 40).decode()
WAV = base64.b64encode(b"RIFF1234WAVEfmt ").decode()


def image(data: str = PNG, mime_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime_type}


def test_blocks_are_found_wherever_they_are_and_the_value_stays() -> None:
    sound = {"type": "audio", "data": WAV, "mimeType": "audio/wav", "annotations": {"priority": 1}}
    value: dict[str, Any] = {
        "content": [{"type": "text", "text": "a"}, image()],
        "more": {"deep": [sound, 1, None]},
    }
    shown, found = taken_out(value)
    assert found == [Media("image", "image/png", PNG), Media("audio", "audio/wav", WAV)]
    assert value["content"][1] == image()
    assert shown["content"] == [
        {"type": "text", "text": "a"},
        image("[image/png, 48 bytes: image block 1 of this response]"),
    ]
    assert shown["more"]["deep"][0]["data"] == "[audio/wav, 16 bytes: audio block 2 of this response]"
    assert shown["more"]["deep"][0]["annotations"] == {"priority": 1}


@pytest.mark.parametrize(
    "block",
    [
        image(mime_type="image/svg+xml"),
        image(mime_type="text/html"),
        # What it says is not what it is.
        image(mime_type="image/jpeg"),
        image(WAV),
        image("no base64!"),
        image(PNG[:-1]),
        image(""),
        {"type": "text", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": WAV, "mimeType": "audio/wav\n"},
        {"type": "image", "data": [PNG], "mimeType": "image/png"},
        {"type": "image", "data": PNG},
    ],
)
def test_what_no_client_could_show_stays(block: dict[str, Any]) -> None:
    value = [block]
    shown, found = taken_out(value)
    assert shown is value and found == []


def test_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, found = taken_out([image()] * (media.MAX_BLOCKS + 2))
    assert len(found) == media.MAX_BLOCKS
    assert shown[-1] == image()
    monkeypatch.setattr(media, "MAX_CHARS", 2 * len(PNG))
    shown, found = taken_out([image()] * 3)
    assert len(found) == 2 and shown[2] == image()
    deep: Any = image()
    for _ in range(media.MAX_LEVELS):
        deep = [deep]
    assert taken_out(deep) == (deep, [])
    assert taken_out([0] * media.MAX_VALUES + [image()])[1] == []
