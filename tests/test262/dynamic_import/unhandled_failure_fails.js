// A failed import that nobody handles fails the script as any rejection does.
/*---
negative:
  phase: runtime
  type: EvalError
---*/
import({
  toString() {
    throw new EvalError("nobody looks");
  },
});
await new Promise((resolve) => setTimeout(resolve, 5));
