// The specifier cannot be spread.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import(...["@codemode/errors"]);
