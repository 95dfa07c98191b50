// The same values are skipped in objects and null in arrays.
same(JSON.stringify({ a: undefined, b() {}, c: Symbol(), d: null }), '{"d":null}', "object");
same(JSON.stringify([undefined, () => {}, Symbol(), , 1]), "[null,null,null,null,1]", "array");
