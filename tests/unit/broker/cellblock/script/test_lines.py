"""Lines and columns of scripts: against a plain count, and against what a real Deno says."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import deno
import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.script import lines as script_lines
from cellblock.script.lines import CompilerPlaces, parsed_place, place, with_plain_ends
from support.script_places import ENDS, counted, fillers, spaces, starts

RUNNER = """
const all = JSON.parse(await Deno.readTextFile(Deno.args[0]));
const places = [];
let count = 0;
for (const [type, code] of all) {
  const url = `data:application/${type};base64,` + new TextEncoder().encode(`${code}\\n//${count++}`).toBase64();
  let said = "";
  try { await import(url); } catch (error) { said = error.message.includes("base64,") ? error.message : error.stack; }
  const found = /base64,[^:]*:(\\d+):(\\d+)/.exec(said);
  places.push(found === null ? said : [Number(found[1]), Number(found[2])]);
}
console.log(JSON.stringify(places));
"""

texts = st.lists(st.sampled_from([*ENDS, "\t", "a", "é", "💥", "\u2027", "\x85", "\x0b"])).map("".join)


def of_deno(scripts: list[tuple[str, str]], folder: Path) -> list[Any]:
    """Where each script fails, as Deno says it."""
    (folder / "run.js").write_text(RUNNER)
    (folder / "all.json").write_text(json.dumps(scripts))
    deno_run = [deno.find_deno_bin(), "run", "-q", "--no-config", "--no-lock", "--allow-read"]
    command = [*deno_run, "run.js", "all.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@given(texts, st.data())
def test_a_place_is_what_a_plain_count_gives(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    assert place(text, index) == counted(text, index)


@given(texts)
def test_only_lf_ends_lines_then_and_nothing_moves(text: str) -> None:
    raw = text.encode()
    plain = with_plain_ends(raw)
    assert len(plain) == len(raw)
    begins = {len(text[:at].encode()) for at in range(len(text) + 1) if counted(text, at)[1] == 1}
    assert {0, *(at + 1 for at, byte in enumerate(plain) if byte == 0x0A)} == begins


@given(texts, st.data())
def test_compilers_places_become_the_engines(text: str, data: st.DataObject) -> None:
    """To a compiler the separators are characters of a line like others."""
    index = data.draw(st.integers(0, len(text)))
    there = counted(text.replace("\u2028", "x").replace("\u2029", "x"), index)
    assert CompilerPlaces(text).place(*there) == counted(text, index)


@given(texts, st.data())
def test_the_parsers_places_become_the_engines(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    before = text[:index].rpartition("\n")[2]
    line, column = text.count("\n", 0, index) + 1, len(before) + before.count("\t") + 1
    assert parsed_place(text, line, column) == counted(text, index)


@pytest.mark.parametrize(("line", "column"), [(0, 1), (3, 1), (10**9, 10**9)])
def test_a_line_that_is_not_there_is_given_back(line: int, column: int) -> None:
    assert parsed_place("a\nb", line, column) == (line, column)
    assert CompilerPlaces("a\nb").place(line, column) == (line, column)


@hypothesis.settings(max_examples=5)
@given(scripts=st.lists(st.tuples(starts, fillers, spaces), min_size=40, max_size=40))
def test_deno_counts_as_is_said_here(
    scripts: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine in JavaScript, its frames of compiled TypeScript, and the parser in syntax errors."""
    engine = [f"{start}{text}throw new Error();" for start, text, _ in scripts]
    compiled = [f"{start}{text}enum E {{}} throw new Error();" for start, _, text in scripts]
    parsed = [f"{start}{text}\t'💥'; let a = ;" for start, text, _ in scripts]
    pairs = [
        *(("javascript", code) for code in engine),
        *(("typescript", code) for code in compiled),
        *(("javascript", code) for code in parsed),
    ]
    found = iter(of_deno(pairs, tmp_path_factory.mktemp("deno")))
    for codes, as_engine, failing in (
        (engine, lambda _, *place: place, "new Error"),
        (compiled, lambda code, *place: CompilerPlaces(code).place(*place), "new Error"),
        (parsed, parsed_place, ";"),
    ):
        # Deno takes a byte order mark off.
        for code in (code.removeprefix("\ufeff") for code in codes):
            assert as_engine(code, *next(found)) == counted(code, code.rindex(failing)), repr(code)


def test_separators_are_capped() -> None:
    text = "\u2028" * 300_000 + "💥" * 100_000
    started = time.process_time()
    places = CompilerPlaces(text)
    for column in range(1, 3_000):
        assert places.place(1, column + 1) == (column + 1, 1)
    assert time.process_time() - started < 2
    assert places.place(1, 300_000)[0] == script_lines.MAX_SEPARATORS + 1
