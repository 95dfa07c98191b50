// `withResolvers` gives a promise and its two functions as plain properties.
const made = Promise.withResolvers();
sameList(Object.keys(made).sort(), ["promise", "reject", "resolve"], "keys");
made.resolve(5);
same(await made.promise, 5, "value");
class Sub extends Promise {}
same(Promise.withResolvers.call(Sub).promise.constructor, Sub, "constructor");
