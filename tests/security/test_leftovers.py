"""What one run leaves in a process does not reach the next run there, and nothing of the realm around is in reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.contexts import HEAD, MODULES, fuzz_contexts, marked_worker
from security.leftovers import CASES, NOTHING_IS_LEFT
from support.params import mostly
from support.worker_owner import ContextWorker, Outcome

LEAVE = """
const $leave = (...all) => {
  for (const one of all) {
    try { for (let o = one; o; o = Object.getPrototypeOf(o)) o.LEFT = 1; } catch { /* frozen */ }
  }
};
"""


LOOK = """
let had = false;
const churn = async () => {
  let collected = false;
  const registry = new FinalizationRegistry(() => collected = true);
  registry.register({}, 0);
  for (let i = 0; i < 100 && !collected; i++) {
    for (let k = 0; k < 20; k++) new Array(1e5).fill(k);
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
};
const seen = () => new Promise((resolve) => setTimeout(() => resolve(had || typeof LEFT !== "undefined"), 25));
globalThis.__codemode_result__ = [%s];
"""

WALK = (Path(__file__).parent / "walk.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def worker() -> Iterator[ContextWorker]:
    """One process for all."""
    with ContextWorker() as made:
        yield made


def _run(worker: ContextWorker, script: str) -> Outcome:
    return worker.run(HEAD + LEAVE + script, MODULES, answer={"a": 1})


@pytest.mark.parametrize("name", CASES)
def test_what_a_run_leaves_does_not_reach_the_next(worker: ContextWorker, name: str) -> None:
    leave, look = CASES[name]
    _run(worker, leave)
    after = _run(worker, LOOK % look)
    assert (after.kind, after.value, after.logs) == ("done", [False], []), name


@pytest.mark.parametrize("name", mostly(list(CASES)[::16], list(CASES)))
def test_what_is_looked_for_would_be_found(worker: ContextWorker, name: str) -> None:
    """In one run each case finds what it has left itself, or fails of it: the looks are none that cannot fail."""
    leave, look = CASES[name]
    found, both = False, None
    # On a busy machine what is left may come after the look: once is enough.
    for _ in range(1 if name in NOTHING_IS_LEFT else 20):
        both = _run(worker, f"{leave}\n;{LOOK % look}")
        told = both.logs if both.kind == "done" else [*both.logs, both.value["message"]]
        found = both.value == [True] or "LEFT" in told
        if found:
            break
    assert found == (name not in NOTHING_IS_LEFT), both


@pytest.fixture(scope="module")
def tagged() -> Iterator[ContextWorker]:
    """A process whose own realm has a mark on every object that others inherit from."""
    with marked_worker(120.0) as made:
        yield made


@pytest.mark.parametrize("depth", ["shallow", "full"])
def test_nothing_of_the_realm_around_is_in_reach(tagged: ContextWorker, depth: str) -> None:
    """From the global object, and from what every function returns and throws, also where the stack is full."""
    done = _run(tagged, f"const DEPTH = {depth!r};\n{WALK}")
    assert done.kind == "done" and done.value["outer"] == [], done
    assert done.value["functions"] > 800 and done.value["objects"] > 1500, done


def test_no_hook_on_what_a_context_has_is_handed_something_of_the_realm_around() -> None:
    """With seed 2, `Error` of the global object is among what an engine may look up; `scripts/fuzz_frames --contexts`
    goes on for as long as one wants."""
    assert fuzz_contexts(40, 2) == 40


@pytest.mark.thorough
def test_the_walk_would_find_an_object_of_the_realm_around(tagged: ContextWorker) -> None:
    """The mark is seen through prototypes: put on an object of this realm, it is told."""
    planted = "globalThis.planted = Object.create({ [Symbol.for('cellblock.outer')]: 'planted' });"
    assert _run(tagged, f"const DEPTH = 'shallow';\n{planted}\n{WALK}").value["outer"] != []
