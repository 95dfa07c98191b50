// `then` makes its promise with the species of the constructor.
class Sub extends Promise {
  static get [Symbol.species]() {
    return Promise;
  }
}
const next = Sub.resolve(1).then(() => 2);
assert(!(next instanceof Sub), "not the subclass");
same(await next, 2, "value");
