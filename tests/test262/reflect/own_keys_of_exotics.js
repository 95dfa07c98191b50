// Strings and arrays list their indices and length.
sameList(Reflect.ownKeys(Object("ab")), ["0", "1", "length"], "string");
sameList(Reflect.ownKeys(["x"]), ["0", "length"], "array");
sameList(Reflect.ownKeys(new Uint8Array(2)), ["0", "1"], "typed array");
