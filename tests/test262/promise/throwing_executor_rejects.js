// What the executor throws becomes the reason.
const error = await rejects(
  RangeError,
  new Promise(() => {
    throw new RangeError("out");
  }),
  "class",
);
same(error.message, "out", "message");
