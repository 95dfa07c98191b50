// set tells whether it has set, and calls setters with the receiver.
const target = {
  set a(value) {
    this.kept = value;
  },
};
const receiver = {};
same(Reflect.set(target, "a", 1, receiver), true, "setter");
same(receiver.kept, 1, "receiver");
same(Reflect.set(Object.freeze({ b: 1 }), "b", 2), false, "frozen");
same(
  Reflect.set(
    {
      get c() {
        return 1;
      },
    },
    "c",
    2,
  ),
  false,
  "no setter",
);
