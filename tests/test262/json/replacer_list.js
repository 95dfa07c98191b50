// A list names the keys and their order, at every depth; numbers and wrappers count, duplicates do not.
const value = { c: 1, a: { b: 2, c: 3 }, 1: 4 };
same(JSON.stringify(value, ["a", "c", 1, Object("a"), {}, null]), '{"a":{"c":3},"c":1,"1":4}', "text");
