// A data: URL would be code from text: it cannot be imported in a worker.
const made = await import("data:text/javascript,export default 7");
same(made.default, 7, "value");
