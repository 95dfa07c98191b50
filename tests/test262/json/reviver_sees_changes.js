// What the reviver changes in the holder is what it is called with next.
const seen = [];
JSON.parse('{"a":1,"b":2}', function (key, value) {
  if (key === "a") this.b = "changed";
  seen.push(value);
  return value;
});
same(seen[1], "changed", "value");
