// `any` gives the first fulfilled value, and an AggregateError with all reasons in order otherwise.
same(await Promise.any([Promise.reject(1), new Promise(() => {}), Promise.resolve(2)]), 2, "value");
const error = await rejects(AggregateError, Promise.any([Promise.reject(1), Promise.reject(2)]), "class");
sameList(error.errors, [1, 2], "errors");
const empty = await rejects(AggregateError, Promise.any([]), "nothing");
sameList(empty.errors, [], "no errors");
const property = Object.getOwnPropertyDescriptor(error, "errors");
same(property.enumerable, false, "enumerable");
