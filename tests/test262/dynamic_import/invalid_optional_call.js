// import cannot be called optionally.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import?.("@codemode/errors");
