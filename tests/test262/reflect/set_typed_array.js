// An index outside a typed array is ignored when the receiver is the array, and the value is converted.
const bytes = new Uint8Array(2);
same(Reflect.set(bytes, 0, 257), true, "inside");
same(bytes[0], 1, "converted");
same(Reflect.set(bytes, 5, 1), true, "outside");
same(bytes[5], undefined, "ignored");
