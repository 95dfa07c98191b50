// The construct trap must give an object, and exists for constructors only.
class Point {
  constructor(x) {
    this.x = x;
  }
}
same(new (new Proxy(Point, {}))(1).x, 1, "no trap");
const proxy = new Proxy(Point, {
  construct: (target, args, fresh) => ({ x: args[0], fresh: fresh === proxy }),
});
const made = new proxy(2);
sameList([made.x, made.fresh], [2, true], "trap");
throws(TypeError, () => new (new Proxy(Point, { construct: () => 1 }))(), "number");
throws(TypeError, () => new (new Proxy(() => {}, { construct: () => ({}) }))(), "no constructor");
