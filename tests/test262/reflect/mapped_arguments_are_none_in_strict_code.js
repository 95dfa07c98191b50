// The arguments object of strict code is not tied to the parameters.
function own(a) {
  Reflect.set(arguments, 0, "changed");
  return a;
}
same(own("kept"), "kept", "parameter");
