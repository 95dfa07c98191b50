// Called without new, or without a function, the constructor throws a TypeError.
throws(TypeError, () => Promise(() => {}), "without new");
throws(TypeError, () => new Promise(), "without an executor");
throws(TypeError, () => new Promise({}), "with an object");
