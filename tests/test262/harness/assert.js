// What this project's own cases check with. A failed check throws a Test262Error, as in the suite.

const isSame = Object.is;
const show = (value) => typeof value === "symbol" ? value.toString() : `${value}`;

function assert(holds, what) {
  if (holds !== true) throw new Test262Error(what);
}

/** Fails unless the two are the same value; tells +0 from -0 and knows NaN. */
function same(actual, expected, what) {
  if (!isSame(actual, expected)) {
    throw new Test262Error(`${what}: got ${show(actual)}, expected ${show(expected)}`);
  }
}

/** Fails unless the two lists have the same values in the same order. */
function sameList(actual, expected, what) {
  same(actual.length, expected.length, `${what}, length`);
  for (let index = 0; index < expected.length; index++) {
    same(actual[index], expected[index], `${what}[${index}]`);
  }
}

/** Fails unless `act()` throws an error of exactly this class; returns it. */
function throws(Class, act, what) {
  try {
    act();
  } catch (error) {
    same(error?.constructor, Class, what);
    return error;
  }
  throw new Test262Error(`${what}: nothing was thrown`);
}

/** Fails unless the promise is rejected with an error of exactly this class; gives it. */
async function rejects(Class, promise, what) {
  try {
    await promise;
  } catch (error) {
    same(error?.constructor, Class, what);
    return error;
  }
  throw new Test262Error(`${what}: it was fulfilled`);
}
