// Only the first call of the resolving functions counts.
const value = await new Promise((resolve, reject) => {
  resolve("kept");
  resolve("late");
  reject(new Error("late"));
  throw new Error("late too");
});
same(value, "kept", "value");
