// Every kind of JSON text at the top level.
same(JSON.parse("null"), null, "null");
same(JSON.parse(" true\t"), true, "true");
same(JSON.parse("-0"), -0, "-0");
same(JSON.parse("1e3"), 1000, "exponent");
same(JSON.parse('"\\u00e9"'), "é", "escape");
