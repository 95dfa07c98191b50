// Handlers that are no functions pass the value and the reason on.
same(await Promise.resolve(3).then(null, undefined).then(), 3, "value");
const reason = new Error("kept");
same(await Promise.reject(reason).then(() => 1).catch((error) => error), reason, "reason");
