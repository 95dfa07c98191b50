"""Parameters of which most say again what a few have shown."""

from collections.abc import Sequence
from typing import Any

import pytest


def mostly(chosen: Sequence[Any], every: Sequence[Any]) -> list[Any]:
    """Gives all of them: those that are not chosen are tried with `--thorough` alone."""
    return [
        one
        if one in chosen
        else pytest.param(*one if isinstance(one, tuple) else (one,), marks=pytest.mark.thorough)
        for one in every
    ]
