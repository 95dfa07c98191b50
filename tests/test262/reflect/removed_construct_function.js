// Reflect.construct(Function, …) takes no source text in a worker.
same(Reflect.construct(Function, ["return 5"])(), 5, "value");
