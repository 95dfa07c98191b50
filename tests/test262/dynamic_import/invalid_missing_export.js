// A name that a module does not export fails the script before it starts.
/*---
negative:
  phase: resolution
  type: SyntaxError
---*/
import { noSuchName } from "@codemode/errors";
throw new Error("must not run");
