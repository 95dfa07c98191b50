"""The JavaScript build: when it counts as current, which Deno it takes, and what it makes of a small tree."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import build_js

OUTPUTS = ("boot.js", "contexts.js", "globals.json", "node_blocked.json", "selftest.js", "BUILD.json")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree as small as can be, with a space in its path."""
    root = tmp_path / "a tree"
    for name, content in {
        "worker_runtime/sandbox/boot.ts": (
            'import { HelpfulError } from "../../js_stdlib/errors.ts";\n'
            'function explode(): never { throw new HelpfulError("boom"); }\n'
            "try { explode(); } catch (error) { console.log(error.constructor.name, error.stack); }\n"
        ),
        "worker_runtime/sandbox/selftest.ts": "console.log(1);\n",
        "worker_runtime/sandbox/contexts.ts": "declare const CELLBLOCK_INNER: string; console.log(CELLBLOCK_INNER);\n",
        "worker_runtime/sandbox/journal/journal.ts": "declare const CELLBLOCK_REST: 1; console.log(CELLBLOCK_REST);\n",
        "worker_runtime/sandbox/context/inner.ts": "const inside: number = 2; console.log(inside);\n",
        "worker_runtime/sandbox/globals/globals_table.ts": (
            'export const ALLOWED_GLOBALS = { __proto__: null, JSON: "listed" };\n'
            'export const DEVIATIONS = { __proto__: null, eval: "absent" };\n'
        ),
        "js_stdlib/errors.ts": "export class HelpfulError extends Error { hint: string = 'try again'; }\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return root


ERRORS = "js_stdlib/errors.ts"
CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "edit": lambda tree, _: (tree / ERRORS).write_text("export class Other {}\n", encoding="utf-8"),
    "add": lambda tree, _: (tree / "worker_runtime/sandbox/extra.ts").touch(),
    "rename": lambda tree, _: (tree / ERRORS).rename(tree / "js_stdlib/failures.ts"),
    "delete": lambda tree, _: (tree / ERRORS).unlink(),
    "half-written": lambda _, out: (out / "BUILD.json").write_text('{"inputs_', encoding="utf-8"),
    **{f"no {name}": lambda _, out, name=name: (out / name).unlink() for name in OUTPUTS},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_of_a_source_or_an_output_is_noticed(
    tree: Path, change: Callable[[Path, Path], object]
) -> None:
    # What a finished build leaves.
    out = tree / build_js.OUT
    out.mkdir(parents=True)
    for name in OUTPUTS[:-1]:
        (out / name).write_text("{}", encoding="utf-8")
    info = {"inputs_sha256": build_js.inputs_digest(tree)}
    (out / "BUILD.json").write_text(json.dumps(info), encoding="utf-8")
    assert build_js.is_current(tree, out)
    change(tree, out)
    assert not build_js.is_current(tree, out)


def test_blocked_imports_cover_bare_and_prefixed_names() -> None:
    assert build_js.blocked_imports(["fs/promises", "node:sqlite"]) == {
        "fs/promises": "cellblock-blocked:node:fs/promises",
        "node:fs/promises": "cellblock-blocked:node:fs/promises",
        "sqlite": "cellblock-blocked:node:sqlite",
        "node:sqlite": "cellblock-blocked:node:sqlite",
    }


def test_a_deno_outside_the_range_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "deno"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'deno 1.46.3 (stable)'\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    found = build_js.find_deno()
    assert found.path != fake and found.version.startswith("2.")


def test_a_broken_source_is_named(tree: Path) -> None:
    (tree / "js_stdlib" / "errors.ts").write_text("export class {", encoding="utf-8")
    with pytest.raises(build_js.BuildError, match=r"errors\.ts"):
        build_js.build(tree, tree / build_js.OUT)
    assert not build_js.is_current(tree, tree / build_js.OUT)


def test_build_makes_a_module_that_runs_and_blocks_node(tree: Path) -> None:
    out = tree / build_js.OUT
    build_js.build(tree, out)
    assert {path.name for path in out.iterdir()} == set(OUTPUTS)
    assert build_js.is_current(tree, out)
    deno = build_js.find_deno()
    assert json.loads((out / "BUILD.json").read_text(encoding="utf-8"))["deno"] == deno.version
    assert json.loads((out / "globals.json").read_text(encoding="utf-8")) == {
        "allowed": {"JSON": "listed"},
        "deviations": {"eval": "absent"},
    }

    ran = subprocess.run([deno.path, "run", out / "boot.js"], capture_output=True, text=True, check=True)
    # Names do not survive: what keeps them runs at each boot of a worker, and each time a function is made.
    assert ran.stdout.partition("\n")[0].endswith(" Error: boom")
    assert '"name"' not in (out / "boot.js").read_text(encoding="utf-8")

    probe = tree / "probe.mjs"
    probe.write_text(
        "for (const name of JSON.parse(Deno.args[0])) {\n"
        "  const say = (error) => console.log('blocked', error.message);\n"
        "  await import(name).then(() => console.log('LOADED', name), say);\n"
        "}\n",
        encoding="utf-8",
    )
    names = ["node:fs", "node:process", "node:child_process", "node:sqlite", "node:test", "node:_tls_wrap"]
    options = ["--no-config", f"--import-map={out / 'node_blocked.json'}"]
    command = [deno.path, "run", *options, probe, json.dumps(names)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sum(line.startswith("blocked") and "cellblock-blocked" in line for line in lines) == len(names)


def test_every_builtin_of_this_deno_is_in_the_map(tree: Path) -> None:
    out = tree / build_js.OUT
    build_js.build(tree, out)
    imports = json.loads((out / "node_blocked.json").read_text(encoding="utf-8"))["imports"]
    script = (
        'import { isBuiltin } from "node:module";'
        "console.log(JSON.stringify(JSON.parse(Deno.args[0]).filter((n) => !isBuiltin(n))))"
    )
    prefixed = [name for name in imports if name.startswith("node:")]
    command = [build_js.find_deno().path, "eval", script, json.dumps(prefixed)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert len(prefixed) > 60
