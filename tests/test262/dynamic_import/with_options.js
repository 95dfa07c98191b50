// The second argument may be undefined or an empty object; a wrong one rejects.
const space = await import("@codemode/errors");
same(await import("@codemode/errors", undefined), space, "undefined");
same(await import("@codemode/errors", {}), space, "empty");
same(await import("@codemode/errors", { with: {} }), space, "no attributes");
await rejects(TypeError, import("@codemode/errors", 1), "number");
await rejects(TypeError, import("@codemode/errors", { with: 1 }), "with");
