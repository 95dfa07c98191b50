// The reviver is called from the leaves to the root, with the holder as `this`.
const keys = [];
JSON.parse('{"a":[1,2],"b":3}', function (key, value) {
  keys.push(key);
  assert(key === "" || this[key] === value, "holder");
  return value;
});
sameList(keys, ["0", "1", "a", "b", ""], "keys");
