// Default parameters, templates, conditions, computed keys, optional chains and tagged templates.
const space = await import("@codemode/errors");
const byDefault = async (module = import("@codemode/errors")) => await module;
same(await byDefault(), space, "parameter");
same(await (true ? import("@codemode/errors") : null), space, "condition");
same((await import("@codemode/errors"))?.CodemodeError, space.CodemodeError, "chain");
same(`${typeof import("@codemode/errors")}`, "object", "template");
same(await { [`key`]: import("@codemode/errors") }.key, space, "object");
same(await ((strings, value) => value)`${import("@codemode/errors")}`, space, "tag");
const chosen = space.missing ?? (await import("@codemode/errors"));
same(chosen, space, "coalescing");
