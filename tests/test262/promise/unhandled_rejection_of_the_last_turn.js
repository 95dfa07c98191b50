// A rejection that the script's very last turn leaves unhandled fails it too: a forgotten `await`.
/*---
negative:
  phase: runtime
  type: RangeError
---*/
(async () => {
  throw new RangeError("nobody waits");
})();
