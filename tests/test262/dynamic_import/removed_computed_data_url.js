// Nor when its name is put together.
const made = await import(["data:text", "javascript,export default 7"].join("/"));
same(made.default, 7, "value");
