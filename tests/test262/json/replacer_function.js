// A replacer is called from the root down, with the holder as `this`, after `toJSON`.
const keys = [];
const text = JSON.stringify({ a: 1, b: { toJSON: () => [2] } }, function (key, value) {
  keys.push(key);
  assert(key !== "b" || Array.isArray(value), "after toJSON");
  return value === 1 ? "one" : value;
});
same(text, '{"a":"one","b":[2]}', "text");
sameList(keys, ["", "a", "b", "0"], "keys");
