// map, concat and slice of a proxied array make ordinary arrays.
const proxy = new Proxy([3, 1, 2], {});
sameList(proxy.map((value) => value * 2), [6, 2, 4], "map");
sameList([0].concat(proxy), [0, 3, 1, 2], "concat");
sameList([...proxy].sort(), [1, 2, 3], "spread");
