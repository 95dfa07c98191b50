// An import may stand in the specifier of another.
const outer = await import((await import("@codemode/errors")).missing ?? "@codemode/discovery");
same(typeof outer.specVersion, "string", "namespace");
