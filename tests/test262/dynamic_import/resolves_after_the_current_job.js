// Even a module that is there already comes later.
await import("@codemode/errors");
const order = [];
const promise = import("@codemode/errors").then(() => order.push("import"));
order.push("now");
await promise;
sameList(order, ["now", "import"], "order");
