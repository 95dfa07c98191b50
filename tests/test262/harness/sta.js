// The error of a failed check, whose name and message a host can report.

function Test262Error(message = "") {
  return Reflect.construct(Error, [message], new.target ?? Test262Error);
}
Object.setPrototypeOf(Test262Error.prototype, Error.prototype);
Object.defineProperty(Test262Error.prototype, "name", {
  value: "Test262Error",
  writable: true,
  configurable: true,
});
