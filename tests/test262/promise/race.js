// `race` settles as the first to settle, and never for nothing.
same(
  await Promise.race([new Promise(() => {}), Promise.resolve("won"), Promise.reject(new Error())]),
  "won",
  "value",
);
let settled = false;
Promise.race([]).then(() => settled = true);
for (let job = 0; job < 20; job++) await undefined;
same(settled, false, "nothing settles nothing");
