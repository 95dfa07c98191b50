// The target is checked before the key is converted.
let converted = 0;
throws(TypeError, () =>
  Reflect.has(1, {
    toString() {
      converted++;
      return "a";
    },
  }), "target");
same(converted, 0, "conversions");
throws(EvalError, () =>
  Reflect.has({}, {
    toString() {
      throw new EvalError();
    },
  }), "exception");
