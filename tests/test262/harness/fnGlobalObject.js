// In place of the suite's, which makes a Function from text to reach the global object.

function fnGlobalObject() {
  return globalThis;
}
