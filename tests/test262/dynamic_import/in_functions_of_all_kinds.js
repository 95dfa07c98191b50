// import() works in arrows, async functions, generators, methods, getters and class fields.
const load = () => import("@codemode/errors");
async function asynchronous() {
  return await import("@codemode/errors");
}
function* generator() {
  yield import("@codemode/errors");
}
async function* stream() {
  yield import("@codemode/errors");
}
class Holder {
  field = import("@codemode/errors");
  static fixed = import("@codemode/errors");
  get got() {
    return import("@codemode/errors");
  }
  async #hidden() {
    return await import("@codemode/errors");
  }
  hidden() {
    return this.#hidden();
  }
}
const holder = new Holder();
const space = await load();
const rest = [
  asynchronous(),
  generator().next().value,
  stream().next().then((step) => step.value),
  holder.field,
  Holder.fixed,
  holder.got,
  holder.hidden(),
];
for (const other of await Promise.all(rest)) same(other, space, "namespace");
