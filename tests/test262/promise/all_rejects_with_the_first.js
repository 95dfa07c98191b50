// `all` is rejected with the reason that comes first, and keeps to it.
const error = await rejects(
  RangeError,
  Promise.all([
    new Promise(() => {}),
    Promise.reject(new RangeError("1")),
    Promise.reject(new TypeError("2")),
  ]),
  "class",
);
same(error.message, "1", "message");
