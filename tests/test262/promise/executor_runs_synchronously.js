// The executor is called once, before the constructor returns, with two functions of length 1.
let calls = 0;
new Promise((resolve, reject) => {
  calls++;
  same(typeof resolve, "function", "resolve");
  same(resolve.length, 1, "resolve.length");
  same(reject.length, 1, "reject.length");
  same(resolve.name, "", "resolve.name");
});
same(calls, 1, "calls");
