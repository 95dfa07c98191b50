// A promise that an async function returns is seen in the third job, where a plain value is in the first.
const order = [];
const returned = (async () => Promise.resolve())().then(() => order.push("returned"));
Promise.resolve().then(() => order.push(1)).then(() => order.push(2)).then(() => order.push(3));
await returned;
sameList(order.slice(0, order.indexOf("returned")), [1, 2], "before");
