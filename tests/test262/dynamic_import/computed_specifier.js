// The specifier is any expression.
const name = "errors";
const space = await import(`@codemode/${name}`);
same(typeof space.CodemodeError, "function", "template");
same(await import(["@codemode", name].join("/")), space, "call");
same(await import(false || "@codemode/errors"), space, "operators");
same(await import((0, "@codemode/errors")), space, "comma");
