// import.defer() and its namespace.
const space = await import.defer("@codemode/errors");
same(typeof space.CodemodeError, "function", "value");
