// A proxy of a built-in behaves as the built-in.
same(new Proxy(parseInt, {})("12px"), 12, "parseInt");
same(new (new Proxy(Map, {}))([[1, 2]]).get(1), 2, "Map");
