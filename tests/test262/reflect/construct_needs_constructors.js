// Neither the target nor new.target may be without [[Construct]].
throws(TypeError, () => Reflect.construct(() => {}, []), "arrow");
throws(TypeError, () => Reflect.construct(Object, [], parseInt), "new.target");
throws(TypeError, () => Reflect.construct(Object), "no list");
throws(TypeError, () => Reflect.construct({ method() {} }.method, []), "method");
