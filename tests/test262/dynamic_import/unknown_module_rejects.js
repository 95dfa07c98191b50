// A module that does not exist rejects, later, with an Error; the script goes on.
let failed = false;
const promise = import("./no_such_module.js");
const seen = promise.then(() => "found", (error) => {
  failed = error instanceof Error;
  return "rejected";
});
same(failed, false, "later");
same(await seen, "rejected", "outcome");
same(failed, true, "an Error");
