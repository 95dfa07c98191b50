// `allSettled` tells each outcome as an ordinary object, in order.
const reason = new Error("no");
const [good, bad] = await Promise.allSettled([Promise.resolve(1), Promise.reject(reason)]);
sameList(Object.keys(good), ["status", "value"], "keys of the fulfilled");
sameList(Object.keys(bad), ["status", "reason"], "keys of the rejected");
same(good.status, "fulfilled", "status");
same(bad.reason, reason, "reason");
same(Object.getPrototypeOf(good), Object.prototype, "prototype");
