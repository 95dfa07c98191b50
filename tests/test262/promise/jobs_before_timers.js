// All jobs that wait, and those that they add, run before a timer.
// Begun in a job: Deno may run a timer that is due before the jobs of a module's first evaluation.
const order = [];
await new Promise((resolve) => setTimeout(resolve, 0));
const timer = new Promise((resolve) =>
  setTimeout(() => {
    order.push("timer");
    resolve();
  }, 0)
);
Promise.resolve().then(() => order.push("job")).then(() => order.push("job of a job"));
await timer;
sameList(order, ["job", "job of a job", "timer"], "order");
