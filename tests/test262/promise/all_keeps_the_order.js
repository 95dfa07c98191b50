// `all` gives values in the order of the input, whatever the order of settling.
const later = (value, jobs) =>
  jobs === 0 ? Promise.resolve(value) : Promise.resolve().then(() => later(value, jobs - 1));
sameList(await Promise.all([later("a", 3), "b", later("c", 1)]), ["a", "b", "c"], "values");
sameList(await Promise.all([]), [], "nothing");
