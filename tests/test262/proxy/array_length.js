// A proxy of an array keeps the array's length up to date.
const list = [];
const proxy = new Proxy(list, {});
proxy.push("a", "b");
proxy[5] = "f";
same(list.length, 6, "length");
proxy.length = 1;
sameList(list, ["a"], "cut");
