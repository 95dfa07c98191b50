// The list is read by length, then index by index, before the call.
const log = [];
const list = new Proxy({ length: 2, 0: "a", 1: "b" }, {
  get(target, key) {
    log.push(key);
    return target[key];
  },
});
Reflect.apply(() => log.push("called"), null, list);
sameList(log, ["length", "0", "1", "called"], "order");
