// Objects are converted once, with the hint "string".
const hints = [];
const space = await import({
  [Symbol.toPrimitive](hint) {
    hints.push(hint);
    return "@codemode/errors";
  },
});
same(typeof space.ToolCallError, "function", "namespace");
sameList(hints, ["string"], "hints");
same(await import({ toString: () => "@codemode/errors" }), space, "toString");
same(await import(new String("@codemode/errors")), space, "wrapper");
