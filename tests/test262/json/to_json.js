// `toJSON` is called with the key, also for primitives by their prototype, and its result is written.
const keys = [];
same(
  JSON.stringify({
    a: {
      toJSON(key) {
        keys.push(key);
        return 1;
      },
    },
    b: [{
      toJSON(key) {
        keys.push(key);
        return 2;
      },
    }],
  }),
  '{"a":1,"b":[2]}',
  "text",
);
sameList(keys, ["a", "0"], "keys");
BigInt.prototype.toJSON = function () {
  return `${this}n`;
};
same(JSON.stringify({ big: 5n }), '{"big":"5n"}', "bigint");
