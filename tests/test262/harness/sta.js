// The names that every test262 case may use beside `assert`, made for a run as one ES module: an Error class whose
// name and message a host can report, and a $DONE that settles a promise instead of printing.

function Test262Error(message = "") {
  return Reflect.construct(Error, [message], new.target ?? Test262Error);
}
Object.setPrototypeOf(Test262Error.prototype, Error.prototype);
Object.defineProperty(Test262Error.prototype, "name", {
  value: "Test262Error",
  writable: true,
  configurable: true,
});
Test262Error.thrower = (message) => {
  throw new Test262Error(message);
};

function $DONOTEVALUATE() {
  throw new Test262Error("this statement must not be evaluated");
}

function $DONE(error) {
  if (error) $DONE.fail(error);
  else $DONE.succeed();
}
$DONE.settled = new Promise((resolve, reject) => {
  $DONE.succeed = resolve;
  $DONE.fail = reject;
});
Object.defineProperty(globalThis, "$DONE", { value: $DONE, writable: true, configurable: true });
