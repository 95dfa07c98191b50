// construct makes an instance with another new.target's prototype.
class Base {
  constructor(x) {
    this.x = x;
    this.made = new.target;
  }
}
class Other {}
const made = Reflect.construct(Base, [1], Other);
assert(made instanceof Other, "prototype");
sameList([made.x, made.made], [1, Other], "fields");
