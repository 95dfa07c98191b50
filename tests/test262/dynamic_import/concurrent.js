// Many imports at once give one namespace.
const spaces = await Promise.all(Array.from({ length: 100 }, () => import("@codemode/errors")));
same(new Set(spaces).size, 1, "namespaces");
