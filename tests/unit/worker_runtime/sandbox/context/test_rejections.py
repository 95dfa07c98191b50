"""What a promise is rejected with in a context, where nothing handles it."""

from __future__ import annotations

from support.context_worker import ContextWorker


def test_a_setter_on_arrays_hides_no_rejection() -> None:
    code = """
        Object.defineProperty(Array.prototype, "0", { set() {}, configurable: true });
        Promise.reject(new Error("mine"));
        globalThis.__codemode_result__ = 1;
    """
    with ContextWorker() as worker:
        done = worker.run(code)
    assert (done.kind, done.value["message"]) == ("failed", "mine")
