// Of equal keys the last one counts, at the place of the first.
const parsed = JSON.parse('{"a":1,"b":2,"a":3}');
same(parsed.a, 3, "value");
sameList(Object.keys(parsed), ["a", "b"], "keys");
