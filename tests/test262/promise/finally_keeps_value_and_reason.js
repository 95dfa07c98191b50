// `finally` passes value and reason on, waits for its callback's promise, and gives it no argument.
let given = "nothing yet";
same(
  await Promise.resolve(1).finally((...args) => {
    given = args.length;
    return 2;
  }),
  1,
  "value",
);
same(given, 0, "arguments");
await rejects(RangeError, Promise.reject(new RangeError()).finally(() => 3), "reason");
await rejects(
  SyntaxError,
  Promise.resolve(1).finally(() => Promise.reject(new SyntaxError())),
  "its own rejection",
);
