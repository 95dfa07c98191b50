// What the specifier's own expression throws is thrown at the place of the call.
let promise;
throws(URIError, () => {
  promise = import((() => {
    throw new URIError();
  })());
}, "thrown");
same(promise, undefined, "no promise");
throws(ReferenceError, () => import(missing), "unknown name");
