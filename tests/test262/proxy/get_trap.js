// The get trap is given target, key and receiver.
const target = {};
const proxy = new Proxy(target, {
  get(...args) {
    same(args[0], target, "target");
    same(args[2], args[1] === "own" ? proxy : heir, "receiver");
    return args[1];
  },
});
const heir = Object.create(proxy);
same(proxy.own, "own", "own");
same(heir.inherited, "inherited", "inherited");
