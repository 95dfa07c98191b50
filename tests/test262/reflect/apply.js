// apply calls with this and an array-like, whatever stands on the function.
function own() {
  return [this, ...arguments].join();
}
own.apply = own.call = () => {
  throw new EvalError();
};
same(Reflect.apply(own, "me", { length: 2, 0: "a", 1: "b" }), "me,a,b", "array-like");
throws(TypeError, () => Reflect.apply(own, "me"), "no list");
throws(TypeError, () => Reflect.apply({}, null, []), "no function");
