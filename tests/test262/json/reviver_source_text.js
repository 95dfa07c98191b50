// The reviver's third argument has the source text of primitives, and of nothing else.
const sources = {};
JSON.parse('{"big":123456789012345678901234567890,"list":[1.0]}', (key, value, context) => {
  sources[key] = context.source;
  return value;
});
same(sources.big, "123456789012345678901234567890", "big");
same(sources[0], "1.0", "in a list");
same(sources.list, undefined, "list");
