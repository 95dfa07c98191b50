// Indices ascending, then strings, then symbols, each by age.
const first = Symbol("first");
const second = Symbol("second");
const target = { [second]: 0, b: 0, 10: 0, [first]: 0, a: 0, 2: 0, "-1": 0, "01": 0 };
sameList(Reflect.ownKeys(target), ["2", "10", "b", "a", "-1", "01", second, first], "keys");
