"""One compiler run for many cases: TypeScript text goes in, the numbers of the lines with errors come out."""

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import deno
import pytest

_CONFIG = {"compilerOptions": {"strict": True, "lib": ["es2023"], "types": ["./declarations.d.ts"]}}
_PLACE = re.compile(r"^    at file://\S*/(\w+)(?:\.d)?\.ts:(\d+):\d+$", re.MULTILINE)


def expression(value: Any) -> str:
    """A JSON value as a TypeScript expression on one line; `__proto__` as a key, not as the prototype."""
    return re.sub(r'"__proto__":', '["__proto__"]:', json.dumps(value))


def run_check(folder: Path, script: str, declarations: str = "export {};\n") -> str:
    """What `deno check` says under `strict` with lib es2023 (no DOM); empty when all is well."""
    (folder / "deno.json").write_text(json.dumps(_CONFIG), "utf-8")
    (folder / "declarations.d.ts").write_text(declarations, "utf-8")
    (folder / "script.ts").write_text(script, "utf-8")
    done = subprocess.run(
        [deno.find_deno_bin(), "check", "--no-lock", "script.ts"],
        cwd=folder,
        env={"NO_COLOR": "1", "DENO_DIR": str(folder.parent / "deno")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not done.returncode or _PLACE.search(done.stderr), f"it did not run: {done.stderr[:2000]}"
    return done.stderr if done.returncode else ""


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., str]:
    """Checks a script against ambient declarations; gives the compiler's errors as text."""

    return partial(run_check, tmp_path)


@pytest.fixture
def misfits(tmp_path: Path) -> Callable[[Iterable[tuple[Any, list[Any]]]], list[list[bool]]]:
    """For many types and their values, in one run: which values the compiler refuses.

    Takes (TypeText, values) pairs. Fails when a declared type itself does not compile.
    """

    def refused(cases: Iterable[tuple[Any, list[Any]]]) -> list[list[bool]]:
        lines = ["declare function check<T>(value: T): void;"]
        places: list[range] = []
        owners: dict[int, str] = {}
        for number, (made, values) in enumerate(cases):
            text = "\n".join([*made.aliases, f"export type Root = {made.text};"])
            declared = f"namespace N{number} {{\n{text}\n}}".split("\n")
            first = len(lines) + 1
            used = first + len(declared)
            lines += declared + [f"check<N{number}.Root>({expression(value)});" for value in values]
            owners.update(dict.fromkeys(range(first, used), text))
            places.append(range(used, used + len(values)))
        errors = {int(line) for _, line in _PLACE.findall(run_check(tmp_path, "\n".join(lines)))}
        broken = [owners[line] for line in sorted(errors) if line in owners]
        assert not broken, f"a declared type does not compile:\n{broken[0]}"
        return [[line in errors for line in group] for group in places]

    return refused
