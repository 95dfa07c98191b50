// Undefined from the reviver deletes the property, and leaves a hole in an array.
const parsed = JSON.parse(
  '{"a":[1,2],"b":3}',
  (key, value) => key === "0" || key === "b" ? undefined : value,
);
assert(!("b" in parsed), "property");
assert(!(0 in parsed.a), "hole");
same(parsed.a.length, 2, "length");
