from __future__ import annotations

from cellblock.daemon.replay import differences


def test_differences_name_the_first_places() -> None:
    before = {"logs": [{"message": "a"}], "result": {"x": [1, True], "y": 0}, "usage": {"wallMs": 1}}
    after = {"logs": [{"message": "a"}, {"message": "b"}], "result": {"x": [1, 1]}, "usage": {"wallMs": 2}}
    assert differences(before, before) == []
    turned = [{"result": {"a": {"x": 1, "y": 2}, "b": 3}}, {"result": {"a": {"y": 2, "x": 1}, "b": 3}}]
    assert differences(*turned) == [{"path": "/result/a", "recorded": ["x", "y"], "replayed": ["y", "x"]}]
    assert differences(before, after) == [
        {"path": "/logs/1", "recorded": None, "replayed": {"message": "b"}},
        {"path": "/result/x/1", "recorded": True, "replayed": 1},
        {"path": "/result/y", "recorded": 0, "replayed": None},
    ]
