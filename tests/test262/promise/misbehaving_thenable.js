// A thenable that settles twice and then throws counts once.
const value = await Promise.resolve({
  then(fulfil, reject) {
    fulfil(1);
    reject(new Error("late"));
    throw new Error("later");
  },
});
same(value, 1, "value");
