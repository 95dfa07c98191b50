// The text is made a string before it is parsed, and its exception goes through.
same(JSON.parse({ toString: () => "[1]" })[0], 1, "object");
throws(TypeError, () => JSON.parse(Symbol()), "symbol");
throws(EvalError, () =>
  JSON.parse({
    toString() {
      throw new EvalError();
    },
  }), "exception");
