// A rejection that nobody handles fails the script.
/*---
negative:
  phase: runtime
  type: RangeError
---*/
Promise.reject(new RangeError("nobody cares"));
await new Promise((resolve) => setTimeout(resolve, 5));
