"""Puts the attacker in Deno's place in the root of every worker that this process starts from now on.

A module of its own: the worker host of a broker under attack imports it, and nothing else of the tests.
"""

from collections.abc import Callable

from cellblock_worker.confinement import bubblewrap

INSIDE = "/native"


def stand_in(folder: str) -> Callable[[], None]:
    """Deno itself lies beside the attacker, which becomes it where it is not to attack. Gives the way back."""
    plain = bubblewrap.root_files

    def with_attacker(deno: str, bundle: str) -> list[str]:
        mounts = plain(deno, bundle)
        at = mounts.index(bubblewrap.DENO_INSIDE) - 1
        beside = ["--ro-bind", folder, INSIDE, "--ro-bind", mounts[at], f"{INSIDE}.deno"]
        mounts[at] = f"{folder}/attacker"
        return [*beside, *mounts]

    def use(files: Callable[[str, str], list[str]]) -> None:
        bubblewrap.root_files = files
        bubblewrap.try_out.cache_clear()

    use(with_attacker)
    return lambda: use(plain)
