import json
from typing import Any

import pytest

from cellblock.app.replay import differences


def test_differences_name_the_first_places() -> None:
    before = {"logs": [{"message": "a"}], "result": {"x": [1, True], "y": 0}, "usage": {"wallMs": 1}}
    after = {"logs": [{"message": "a"}, {"message": "b"}], "result": {"x": [1, 1]}, "usage": {"wallMs": 2}}
    assert differences(before, before) == []
    assert differences(before, after) == [
        {"path": "/logs/1", "recorded": None, "replayed": {"message": "b"}},
        {"path": "/result/x/1", "recorded": True, "replayed": 1},
        {"path": "/result/y", "recorded": 0, "replayed": None},
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": None}, {}, {"path": "/result", "recorded": ["a"], "replayed": []}),
        (
            {"b": 1, "a": None},
            {"a": None, "b": 1},
            {"path": "/result", "recorded": ["b", "a"], "replayed": ["a", "b"]},
        ),
        (
            {"a": {"x": 1, "y": 2}, "b": 3},
            {"a": {"y": 2, "x": 1}, "b": 3},
            {"path": "/result/a", "recorded": ["x", "y"], "replayed": ["y", "x"]},
        ),
        ([1, None], [1], {"path": "/result", "recorded": [1, None], "replayed": [1]}),
        ([0.0], [-0.0], {"path": "/result/0", "recorded": 0.0, "replayed": -0.0}),
        ([1], [1.0], {"path": "/result/0", "recorded": 1, "replayed": 1.0}),
        ({}, [], {"path": "/result", "recorded": {}, "replayed": []}),
    ],
)
def test_what_has_other_bytes_differs(before: Any, after: Any, said: dict[str, Any]) -> None:
    assert json.dumps(before) != json.dumps(after)
    assert list(map(repr, differences({"result": before}, {"result": after}))) == [repr(said)]
