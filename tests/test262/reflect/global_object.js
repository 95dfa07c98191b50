// Reflect sees the global object as an ordinary, open one.
same(Reflect.isExtensible(globalThis), true, "open");
same(Reflect.defineProperty(globalThis, "mine", { value: 1, configurable: true }), true, "define");
same(mine, 1, "bare name");
same(Reflect.deleteProperty(globalThis, "mine"), true, "delete");
same(typeof mine, "undefined", "gone");
same(Reflect.deleteProperty(globalThis, "undefined"), false, "undefined stays");
