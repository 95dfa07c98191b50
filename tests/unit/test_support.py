"""The index of `tests/support` names each of its modules once, and no other."""

from pathlib import Path

import support


def test_the_index_is_whole() -> None:
    assert support.__doc__ and support.__file__
    named = [line.split()[0] for line in support.__doc__.splitlines() if line.startswith("    ")]
    there = sorted(
        path.stem
        for path in Path(support.__file__).parent.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    )
    assert sorted(named) == there
