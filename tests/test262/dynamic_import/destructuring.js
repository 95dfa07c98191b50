// The result is taken apart as any object.
const { CodemodeError, ToolCallError: Failure, missing = "default" } = await import("@codemode/errors");
assert(Failure.prototype instanceof CodemodeError, "classes");
same(missing, "default", "default");
