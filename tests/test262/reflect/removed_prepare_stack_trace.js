// Error.prepareStackTrace cannot be set in a worker.
same(Reflect.set(Error, "prepareStackTrace", () => "made up"), true, "set");
