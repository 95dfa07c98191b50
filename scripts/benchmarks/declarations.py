"""Measures the declaration generator against the public JSON Schema test suite, next to the usual converter.

Fetches by name, into a temporary folder: the source archive of `jsonschema` from PyPI, which carries the
test suite, and `json-schema-to-typescript` from npm, through Deno. For every instance of the suite's required
tests a compiler is asked whether it can be assigned to the declared type. `--list` names every valid instance that
this project's types refuse. Ends with 1 when there is one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deno

from benchmarks.harness import parser
from cellblock.catalog.typescript import schema_to_type
from cellblock.catalog.typescript.document import Draft

SUITE = "jsonschema==4.26.0"
CONVERTER = "npm:json-schema-to-typescript@15.0.4"
DRAFTS: tuple[tuple[str, Draft], ...] = (("draft7", "draft-07"), ("draft2020-12", "2020-12"))
TIMEOUT = 300
"""Seconds for one fetch or one compiler run."""

_CONVERT = """
import { compile } from "CONVERTER";
const schemas = JSON.parse(await new Response(Deno.stdin.readable).text());
const options = { bannerComment: "", format: false, $refOptions: { resolve: { http: false, file: false } } };
const out = [];
for (const schema of schemas) {
  try {
    const named = typeof schema === "object" ? { ...schema, title: "Root" } : schema;
    out.push(await compile(named, "Root", options));
  } catch {
    out.push(null);
  }
}
console.log(JSON.stringify(out));
"""


@dataclass(frozen=True)
class Group:
    """One schema of the suite with its instances: (description, JSON value, whether it is valid)."""

    name: str
    schema: Any
    instances: list[tuple[str, Any, bool]]


@dataclass
class Score:
    """How many instances of one draft a converter's types accept and reject."""

    valid: int = 0
    accepted: int = 0
    invalid: int = 0
    rejected: int = 0
    failed: int = 0


def main(arguments: Sequence[str]) -> int:
    """Fetches, converts, compiles and prints the table; returns 1 when a valid instance is refused."""
    arguing = parser("declarations", __doc__)
    arguing.add_argument("--list", action="store_true", help="name the valid instances that are refused")
    options = arguing.parse_args(arguments)
    refused_in_all = 0
    with tempfile.TemporaryDirectory() as folder:
        tests = fetch_suite(Path(folder))
        print(f"{'draft':<14}{'converter':<28}{'valid accepted':>18}{'invalid rejected':>20}{'failed':>8}")
        for label, draft in DRAFTS:
            groups = list(read_groups(tests / label))
            ours, refused = score(groups, [own_types(group.schema, draft) for group in groups])
            theirs, _ = score(groups, usual_types([group.schema for group in groups], Path(folder)))
            for name, one in (("cellblock", ours), ("json-schema-to-typescript", theirs)):
                accepted = f"{one.accepted}/{one.valid} {one.accepted / one.valid:.1%}"
                rejected = f"{one.rejected}/{one.invalid} {one.rejected / one.invalid:.1%}"
                print(f"{label:<14}{name:<28}{accepted:>18}{rejected:>20}{one.failed:>8}")
            refused_in_all += len(refused)
            if options.list:
                print("\n".join(f"  refused: {name}" for name in refused))
    return 1 if refused_in_all else 0


def fetch_suite(folder: Path) -> Path:
    """Downloads the suite; returns the folder that holds one folder for each draft."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(folder),
        SUITE,
    ]
    subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    archive = next(folder.glob("jsonschema-*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return next(folder.glob("jsonschema-*/json/tests"))


def read_groups(folder: Path) -> Iterator[Group]:
    """The required tests of one draft (what lies in subfolders is optional)."""
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text("utf-8")):
            instances = [(test["description"], test["data"], test["valid"]) for test in case["tests"]]
            yield Group(f"{path.stem}: {case['description']}", case["schema"], instances)


def own_types(schema: Any, draft: Draft) -> str:
    """This project's declarations for one schema; the type is called `Root`."""
    if not isinstance(schema, bool):
        schema = {"$schema": f"https://json-schema.org/{draft}/schema", **schema}
    made = schema_to_type(schema, name="Part")
    return "\n".join([*made.aliases, f"export type Root = {made.text};"])


def usual_types(schemas: list[Any], folder: Path) -> list[str | None]:
    """The usual converter's declarations; None where it fails."""
    script = folder / "convert.mjs"
    script.write_text(_CONVERT.replace("CONVERTER", CONVERTER), "utf-8")
    command = [deno.find_deno_bin(), "run", "--no-lock", "--allow-all", str(script)]
    done = subprocess.run(
        command, input=json.dumps(schemas), check=True, timeout=TIMEOUT, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def score(groups: list[Group], types: list[str] | list[str | None]) -> tuple[Score, list[str]]:
    """One compiler run over all instances: the counts, and the names of valid instances that are refused."""
    lines = ["declare function check<T>(value: T): void;"]
    at_line: dict[int, tuple[int, int]] = {}
    declared_at: dict[int, int] = {}
    for number, (group, text) in enumerate(zip(groups, types, strict=True)):
        if text is None:
            continue
        for line in f"namespace N{number} {{\n{text}\n}}".split("\n"):
            lines.append(line)
            declared_at[len(lines)] = number
        for index, (_, value, _) in enumerate(group.instances):
            lines.append(f"check<N{number}.Root>({expression(value)});")
            at_line[len(lines)] = (number, index)
    errors = compile_errors("\n".join(lines))
    broken = {declared_at[line] for line in errors if line in declared_at}
    wrong = {at_line[line] for line in errors if line in at_line}
    result, refused = Score(), list[str]()
    for number, (group, text) in enumerate(zip(groups, types, strict=True)):
        usable = text is not None and number not in broken
        result.failed += not usable
        for index, (name, _, valid) in enumerate(group.instances):
            fits = usable and (number, index) not in wrong
            if valid:
                result.valid += 1
                result.accepted += fits
                if not fits:
                    refused.append(f"{group.name}: {name}")
            else:
                result.invalid += 1
                result.rejected += usable and not fits
    return result, refused


def expression(value: Any) -> str:
    """A JSON value as a TypeScript expression on one line."""
    # In a literal, `"__proto__": x` would set the prototype; a computed key is a key.
    return re.sub(r'"__proto__":', '["__proto__"]:', json.dumps(value))


def compile_errors(source: str) -> set[int]:
    """The numbers of the lines of a TypeScript text that do not compile under `strict` with lib es2023."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "deno.json").write_text(
            '{"compilerOptions": {"strict": true, "lib": ["es2023"]}}', "utf-8"
        )
        (Path(folder) / "cases.ts").write_text(source, "utf-8", errors="strict")
        done = subprocess.run(
            [deno.find_deno_bin(), "check", "--no-lock", "cases.ts"],
            cwd=folder,
            env={"NO_COLOR": "1", "DENO_DIR": str(Path(folder) / "cache")},
            timeout=TIMEOUT,
            capture_output=True,
            text=True,
        )
    # Each error's own place is indented by four; places of related declarations by eight.
    lines = {int(found) for found in re.findall(r"^    at file://\S*:(\d+):\d+$", done.stderr, re.MULTILINE)}
    if done.returncode and not lines:
        raise RuntimeError(f"the compiler did not run: {done.stderr[:2000]}")
    return lines
