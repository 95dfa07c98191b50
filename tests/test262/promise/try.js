// `Promise.try` calls synchronously, passes arguments, and turns an exception into a rejection.
let called = false;
const sum = Promise.try(
  (a, b) => {
    called = true;
    return a + b;
  },
  1,
  2,
);
same(called, true, "synchronously");
same(await sum, 3, "value");
await rejects(
  URIError,
  Promise.try(() => {
    throw new URIError();
  }),
  "exception",
);
