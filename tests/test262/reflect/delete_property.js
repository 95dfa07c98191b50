// deleteProperty tells false for what stays, and never throws for it.
same(Reflect.deleteProperty({ a: 1 }, "a"), true, "own");
same(Reflect.deleteProperty({}, "a"), true, "absent");
same(Reflect.deleteProperty(Object.freeze({ a: 1 }), "a"), false, "frozen");
same(Reflect.deleteProperty([], "length"), false, "length");
