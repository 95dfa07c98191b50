// A cycle is a TypeError, wherever it closes; the same value twice is none.
const value = { list: [] };
value.list.push(value);
throws(TypeError, () => JSON.stringify(value), "cycle");
const twice = {};
same(JSON.stringify([twice, twice]), "[{},{}]", "twice");
