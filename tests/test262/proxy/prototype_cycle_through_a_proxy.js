// A proxy on the prototype chain stops the check for cycles, and look-ups end with a RangeError.
const loop = {};
Object.setPrototypeOf(loop, new Proxy(loop, {}));
throws(RangeError, () => loop.missing, "loop");
