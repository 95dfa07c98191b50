// A constructor that gives its executor no functions is no promise constructor.
function Fake(executor) {
  executor(1, 2);
}
throws(TypeError, () => Promise.resolve.call(Fake, 1), "no functions");
function Twice(executor) {
  executor(() => {}, () => {});
  executor(() => {}, () => {});
}
throws(TypeError, () => Promise.resolve.call(Twice, 1), "called twice");
