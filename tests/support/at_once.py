"""Several threads that begin at the same moment."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def at_once(work: Callable[[Given], Made], inputs: Iterable[Given]) -> list[Made]:
    """Does the work for each input in a thread of its own; raises what any of them raised."""
    given = list(inputs)
    begin = threading.Barrier(len(given))

    def one(each: Given) -> Made:
        begin.wait()
        return work(each)

    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(one, given))
