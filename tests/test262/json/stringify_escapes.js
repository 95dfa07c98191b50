// Quotes, backslashes and control characters are escaped, the short way where there is one.
same(
  JSON.stringify('"\\\b\f\n\r\t\u0001\u007f\u2028'),
  '"\\"\\\\\\b\\f\\n\\r\\t\\u0001\u007f\u2028"',
  "text",
);
