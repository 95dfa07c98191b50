// queueMicrotask and promise jobs run in one order.
const order = [];
queueMicrotask(() => order.push("a"));
Promise.resolve().then(() => order.push("b"));
queueMicrotask(() => order.push("c"));
await new Promise((resolve) => setTimeout(resolve, 1));
sameList(order, ["a", "b", "c"], "order");
