// eval is absent in a worker.
same(Reflect.apply(eval, undefined, ["2 + 3"]), 5, "value");
