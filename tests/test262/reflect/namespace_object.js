// Reflect is an ordinary object with a tag, neither callable nor a constructor.
same(Object.prototype.toString.call(Reflect), "[object Reflect]", "tag");
same(Object.getPrototypeOf(Reflect), Object.prototype, "prototype");
throws(TypeError, () => Reflect(), "call");
throws(TypeError, () => new Reflect(), "new");
