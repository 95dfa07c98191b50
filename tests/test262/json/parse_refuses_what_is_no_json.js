// JavaScript's own literals are no JSON.
const texts = [
  "",
  "undefined",
  "NaN",
  "+1",
  "01",
  "1.",
  ".5",
  "'a'",
  "[1,]",
  '{"a":1,}',
  "{a:1}",
  "/**/1",
  "0x1",
  "1n",
  "Infinity",
  '"\t"',
];
for (const text of texts) throws(SyntaxError, () => JSON.parse(text), text);
