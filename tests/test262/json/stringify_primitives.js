// What has no JSON is undefined at the top level.
same(JSON.stringify(undefined), undefined, "undefined");
same(JSON.stringify(() => {}), undefined, "function");
same(JSON.stringify(Symbol()), undefined, "symbol");
same(JSON.stringify(NaN), "null", "NaN");
same(JSON.stringify(-0), "0", "-0");
throws(TypeError, () => JSON.stringify(1n), "bigint");
