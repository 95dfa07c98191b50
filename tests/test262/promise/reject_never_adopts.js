// `Promise.reject` keeps a promise as the reason.
const inner = Promise.resolve(1);
same(await Promise.reject(inner).catch((reason) => reason === inner), true, "reason");
