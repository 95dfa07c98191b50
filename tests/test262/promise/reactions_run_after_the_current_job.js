// Reactions never run before the code that is running now has ended, and run in the order of their registration.
const order = [];
const settled = Promise.resolve();
settled.then(() => order.push("first"));
settled.then(() => order.push("second"));
order.push("now");
await settled;
sameList(order, ["now", "first", "second"], "order");
