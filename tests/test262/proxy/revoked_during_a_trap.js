// A trap that revokes its own proxy still ends its operation.
const { proxy, revoke } = Proxy.revocable({}, {
  get() {
    revoke();
    return "given";
  },
});
same(proxy.a, "given", "value");
throws(TypeError, () => proxy.a, "afterwards");
