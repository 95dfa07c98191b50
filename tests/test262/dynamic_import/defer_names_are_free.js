// `defer`, `source`, `with` and `assert` are ordinary names elsewhere.
const defer = 1, source = 2, from = 3, as = 4;
same(defer + source + from + as, 10, "names");
