// import is no value.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
const load = import;
