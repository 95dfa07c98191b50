"""References are followed inside the schema, and never to a network or a file."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from cellblock.tools.schemas.validation import InputValidator

REFERENCED: list[tuple[dict[str, Any], Any, bool]] = [
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, 1, False),
    ({"$ref": "#/$defs/%C3%A9", "$defs": {"é": {"type": "string"}}}, 1, False),
    ({"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "string"}}}, 1, False),
    (
        {
            "$ref": "https://example.com/a#/$defs/x",
            "$id": "https://example.com/a",
            "$defs": {"x": {"type": "string"}},
        },
        1,
        False,
    ),
    (
        {"properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}},
        {"next": {"next": {"v": "x"}}},
        False,
    ),
    ({"properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}, {"next": {"next": {"v": 1}}}, True),
    ({"items": {"$ref": "#/other/place"}, "other": {"place": {"type": "string"}}}, [1], False),
]


@pytest.mark.parametrize(("schema", "value", "fits"), REFERENCED)
def test_references_inside_the_schema_are_followed(schema: dict[str, Any], value: Any, fits: bool) -> None:
    validator = InputValidator(schema)
    assert validator.is_checking
    assert (validator.check(value) is None) == fits


@pytest.mark.parametrize("scheme", ["http://127.0.0.1:{port}/x", "https://127.0.0.1:{port}/x#/a"])
@pytest.mark.parametrize("keyword", ["$ref", "$schema", "$id", "$dynamicRef"])
def test_no_reference_opens_a_connection(scheme: str, keyword: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        address = scheme.format(port=server.getsockname()[1])
        schema = {"type": "object", keyword: address}
        if keyword == "$id":
            schema["properties"] = {"a": {"$ref": "other.json"}}
        caught: list[Any] = []

        def listen() -> None:
            with contextlib.suppress(TimeoutError):
                caught.append(server.accept()[1])

        listener = threading.Thread(target=listen)
        listener.start()
        with caplog.at_level(logging.WARNING):
            validator = InputValidator(schema, label="files.read")
            for _ in range(3):
                assert validator.check({"a": 1}) is None
                assert validator.check(7) is None
        listener.join()
    assert caught == []
    assert not validator.is_checking
    assert len(caplog.records) == 1
    assert "files.read" in caplog.text


def test_a_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}')
    validator = InputValidator({"$ref": f"file://{tmp_path}/s.json"})
    assert validator.check(5) is None
    assert not validator.is_checking
