// A thenable's `then` is not called during resolve, but in a later job.
const order = [];
const adopted = new Promise((resolve) => {
  resolve({
    then(fulfil) {
      order.push("then");
      fulfil(7);
    },
  });
  order.push("resolved");
});
order.push("after");
same(await adopted, 7, "value");
sameList(order, ["resolved", "after", "then"], "order");
