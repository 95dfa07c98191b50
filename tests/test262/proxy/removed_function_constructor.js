// A proxy of Function takes source text no more than Function itself.
same(new Proxy(Function, {})("return 7")(), 7, "value");
