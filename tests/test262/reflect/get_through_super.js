// super looks properties up on the home object's prototype, with this as the receiver.
class Base {
  get whom() {
    return this.name;
  }
}
class Sub extends Base {
  name = "sub";
  ask() {
    return super.whom;
  }
}
same(new Sub().ask(), "sub", "receiver");
