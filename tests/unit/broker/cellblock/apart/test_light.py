"""What may be decoded on the loop, by its bytes alone."""

from __future__ import annotations

import pytest

from cellblock.apart.light import LIGHT_BYTES, LIGHT_CONTAINERS, is_light


@pytest.mark.parametrize(
    ("raw", "light"),
    [
        (b"", True),
        (b'"' + b"x" * (LIGHT_BYTES - 2) + b'"', True),
        (b'"' + b"x" * (LIGHT_BYTES - 1) + b'"', False),
        (b"[" + b"[]," * (LIGHT_CONTAINERS - 2) + b"{}]", True),
        (b"[" + b"{}," * (LIGHT_CONTAINERS - 1) + b"[]]", False),
    ],
)
def test_bytes_and_containers_are_counted(raw: bytes, light: bool) -> None:
    assert is_light(raw) is light
