// The keyword cannot be written with an escape.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
im\u0070ort("@codemode/errors");
