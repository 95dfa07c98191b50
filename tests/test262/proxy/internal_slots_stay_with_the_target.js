// A proxy has no internal slots but those of a proxy.
throws(TypeError, () => new Proxy(new Map(), {}).size, "Map");
throws(TypeError, () => new Proxy(new Date(), {}).getTime(), "Date");
throws(TypeError, () => new Proxy(Promise.resolve(), {}).then(() => {}), "Promise");
