"""Every violation gets one corrective action, with the near miss where there is one."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.base.suggest import nearest_names
from cellblock.tools.schemas.explain import corrective_hint
from cellblock.tools.schemas.validation import InputValidator

FILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["read", "write"]},
        "owner": {
            "properties": {"id": {"type": "integer"}, "e-mail": {"type": "string"}},
            "additionalProperties": False,
        },
    },
    "required": ["path"],
}
STRICT = {**FILE, "additionalProperties": False}
SHAPE: dict[str, Any] = {
    "oneOf": [
        {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
        {"properties": {"kind": {"const": "square"}, "w": {"type": "number"}}, "required": ["kind", "w"]},
    ]
}

HINTS: list[tuple[Any, Any, str]] = [
    (STRICT, {"pth": "a"}, 'Did you mean "path"?'),
    (FILE, {"Path": "a"}, 'Rename "Path" to "path".'),
    (FILE, {}, "Add /path: string."),
    (FILE, {"path": "a", "mode": "raed"}, 'Did you mean "read"?'),
    (FILE, {"path": "a", "owner": {"id": 1, "email": "x"}}, 'Did you mean "e-mail"?'),
    (STRICT, {"path": "a", "zzz": 1}, "Leave /zzz out."),
    (FILE, {"path": 1}, "Change /path: it must be string."),
    (SHAPE, {"kind": "sqare", "w": 1}, 'Did you mean "square"?'),
    (FILE, [], "Change the input: it must be object."),
]


@pytest.mark.parametrize(("schema", "value", "hint"), HINTS)
def test_the_hint_is_one_corrective_action(schema: Any, value: Any, hint: str) -> None:
    violation = InputValidator(schema).check(value)
    assert violation is not None
    assert corrective_hint(violation, nearest_names) == hint
