// import.meta cannot be replaced.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import.meta = {};
