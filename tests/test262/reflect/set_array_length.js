// Setting the length of an array cuts it, and a bad length throws.
const list = [1, 2, 3];
same(Reflect.set(list, "length", 1), true, "set");
sameList(list, [1], "cut");
throws(RangeError, () => Reflect.set(list, "length", -1), "bad");
