// getPrototypeOf gives the prototype or null.
same(Reflect.getPrototypeOf([]), Array.prototype, "array");
same(Reflect.getPrototypeOf(Object.create(null)), null, "null");
