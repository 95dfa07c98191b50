// The constructor of async functions takes no source text in a worker.
const AsyncFunction = (async () => {}).constructor;
same(await new AsyncFunction("return await 1")(), 1, "value");
