// JSON.rawJSON puts a text as it is, if it is a primitive's.
same(JSON.stringify({ n: JSON.rawJSON("12345678901234567890") }), '{"n":12345678901234567890}', "text");
assert(JSON.isRawJSON(JSON.rawJSON("1")), "raw");
assert(!JSON.isRawJSON({ rawJSON: "1" }), "look-alike");
throws(SyntaxError, () => JSON.rawJSON("{}"), "object");
throws(SyntaxError, () => JSON.rawJSON(" 1"), "space");
assert(Object.isFrozen(JSON.rawJSON("1")), "frozen");
