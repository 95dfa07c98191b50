// `await` of a native promise goes on after one job, not three.
const order = [];
const settled = Promise.resolve();
const work = (async () => {
  await settled;
  order.push("awaited");
})();
settled.then(() => order.push("second")).then(() => order.push("third"));
await work;
await undefined;
sameList(order, ["awaited", "second", "third"], "order");
