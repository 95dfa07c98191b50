// The indent is at most ten characters or spaces; empty containers stay on one line.
same(JSON.stringify([1], null, 2), "[\n  1\n]", "number");
same(JSON.stringify([1], null, 99), "[\n          1\n]", "ten");
same(JSON.stringify({ a: [] }, null, "--------------"), '{\n----------"a": []\n}', "text");
same(JSON.stringify({ a: 1 }, null, 0), '{"a":1}', "none");
same(JSON.stringify([1], null, Object(1)), "[\n 1\n]", "wrapper");
