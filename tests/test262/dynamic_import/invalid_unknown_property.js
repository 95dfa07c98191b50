// import has no other property.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
import.unknown("@codemode/errors");
