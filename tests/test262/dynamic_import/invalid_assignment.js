// import() is no target of an assignment.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import("@codemode/errors") = 1;
