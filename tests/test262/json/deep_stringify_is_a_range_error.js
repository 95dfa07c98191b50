// What is too deep for the stack is a RangeError, and the script goes on.
let value = [];
for (let depth = 0; depth < 1_000_000; depth++) value = [value];
throws(RangeError, () => JSON.stringify(value, (_, inner) => inner), "too deep");
same(JSON.stringify([1]), "[1]", "afterwards");
