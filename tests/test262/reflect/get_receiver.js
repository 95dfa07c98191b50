// get passes the receiver to getters, also inherited ones.
const target = {
  get self() {
    return this;
  },
};
const receiver = {};
same(Reflect.get(target, "self", receiver), receiver, "own");
same(Reflect.get(Object.create(target), "self", receiver), receiver, "inherited");
same(Reflect.get(target, "self"), target, "default");
