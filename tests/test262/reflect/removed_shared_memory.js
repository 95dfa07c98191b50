// SharedArrayBuffer is absent in a worker.
same(Reflect.construct(SharedArrayBuffer, [8]).byteLength, 8, "length");
