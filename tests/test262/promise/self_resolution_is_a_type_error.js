// A promise cannot be resolved with itself.
let resolve;
const own = new Promise((fulfil) => resolve = fulfil);
resolve(own);
await rejects(TypeError, own, "class");
