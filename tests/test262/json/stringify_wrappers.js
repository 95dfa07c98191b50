// Wrapper objects give their primitives.
same(JSON.stringify([Object(1), Object("a"), Object(false)]), '[1,"a",false]', "list");
throws(TypeError, () => JSON.stringify(Object(1n)), "bigint");
