// The conversion happens at once, in the order of the expressions around it.
const order = [];
const promise = import({
  toString() {
    order.push("converted");
    return "@codemode/errors";
  },
});
order.push("after");
await promise;
sameList(order, ["converted", "after"], "order");
