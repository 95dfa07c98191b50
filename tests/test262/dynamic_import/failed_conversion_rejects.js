// What the conversion throws rejects the promise; nothing is thrown at the place of the call.
await rejects(
  EvalError,
  import({
    toString() {
      throw new EvalError();
    },
  }),
  "toString",
);
await rejects(TypeError, import(Symbol("s")), "symbol");
await rejects(TypeError, import({ toString: null, valueOf: null }), "no primitive");
