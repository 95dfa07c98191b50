// Typed arrays are objects of indices, Map and Set are empty objects.
same(JSON.stringify(new Uint8Array([1, 2])), '{"0":1,"1":2}', "bytes");
same(JSON.stringify([new Map([[1, 2]]), new Set([1])]), "[{},{}]", "collections");
