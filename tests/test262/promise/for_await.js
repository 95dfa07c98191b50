// `for await` takes values and promises alike, in order, and closes the iterator on `break`.
let closed = false;
async function* numbers() {
  try {
    yield 1;
    yield Promise.resolve(2);
    yield 3;
  } finally {
    closed = true;
  }
}
const seen = [];
for await (const number of numbers()) {
  seen.push(number);
  if (number === 2) break;
}
sameList(seen, [1, 2], "seen");
same(closed, true, "closed");
