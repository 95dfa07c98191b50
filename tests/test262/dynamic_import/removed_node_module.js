// Node's modules cannot be imported in a worker, though Deno has them.
const { sep } = await import("node:path");
same(sep, "/", "value");
