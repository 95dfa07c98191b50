// There are at most two arguments.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import("@codemode/errors", {}, 3);
