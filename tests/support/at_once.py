"""Several threads that begin at the same moment."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(work: Callable[[Any], Any], inputs: Iterable[Any]) -> list[Any]:
    """Does the work for each input in a thread of its own; raises what any of them raised."""
    given = list(inputs)
    begin = threading.Barrier(len(given))

    def one(each: Any) -> Any:
        begin.wait()
        return work(each)

    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(one, given))
