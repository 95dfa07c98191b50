// for…in lists the names in order, and no inherited ones.
Object.prototype.inherited = 1;
const space = await import("@codemode/discovery");
const names = [];
for (const name in space) names.push(name);
sameList(names, Object.keys(space), "names");
assert(!names.includes("inherited"), "nothing inherited");
