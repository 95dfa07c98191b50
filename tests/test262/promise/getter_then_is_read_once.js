// `then` of a resolution is read exactly once; what its getter throws rejects.
let reads = 0;
same(
  await Promise.resolve({
    get then() {
      reads++;
      return undefined;
    },
  }).then(() => "kept"),
  "kept",
  "value",
);
same(reads, 1, "reads");
await rejects(
  EvalError,
  Promise.resolve({
    get then() {
      throw new EvalError();
    },
  }),
  "throwing getter",
);
