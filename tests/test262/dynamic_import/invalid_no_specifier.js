// There must be a specifier.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import();
