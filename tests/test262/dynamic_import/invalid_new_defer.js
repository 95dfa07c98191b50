// import.defer() is no constructor.
/*---
negative:
  phase: parse
  type: SyntaxError
---*/
throw new Error("must not run");
new import.defer("@codemode/errors");
