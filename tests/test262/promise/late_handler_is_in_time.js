// A rejection that is handled before the script ends is none.
const late = Promise.reject(new Error("handled late"));
await new Promise((resolve) => setTimeout(resolve, 5));
same(await late.catch((error) => error.message), "handled late", "message");
