// `all` looks `resolve` up once, and calls it with the constructor for every element.
let reads = 0;
const calls = [];
class Counted extends Promise {
  static get resolve() {
    reads++;
    return function (value) {
      calls.push(this === Counted);
      return Promise.resolve(value);
    };
  }
}
await Promise.all.call(Counted, [1, 2, 3]);
same(reads, 1, "reads");
sameList(calls, [true, true, true], "receivers");
