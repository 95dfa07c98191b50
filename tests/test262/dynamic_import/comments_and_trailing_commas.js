// Comments, line ends and trailing commas may stand between the parentheses.
const space = await import("@codemode/errors");
same(await import(/* which */ "@codemode/errors" /* one */), space, "comments");
same(await import("@codemode/errors",), space, "comma");
same(await import
(
  // a line of its own
  "@codemode/errors"
), space, "lines");
