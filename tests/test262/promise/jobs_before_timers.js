// All jobs that wait, and those that they add, run before a timer.
const order = [];
const timer = new Promise((resolve) =>
  setTimeout(() => {
    order.push("timer");
    resolve();
  }, 0)
);
Promise.resolve().then(() => order.push("job")).then(() => order.push("job of a job"));
await timer;
sameList(order, ["job", "job of a job", "timer"], "order");
