// new.target is checked before the list is read.
let read = 0;
throws(TypeError, () =>
  Reflect.construct(Object, {
    get length() {
      read++;
      return 0;
    },
  }, 1), "new.target");
same(read, 0, "reads");
