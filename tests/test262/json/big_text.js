// A text of megabytes is parsed and written.
const list = Array.from({ length: 200_000 }, (_, index) => ({ index }));
const text = JSON.stringify(list);
same(JSON.parse(text)[199_999].index, 199_999, "last");
