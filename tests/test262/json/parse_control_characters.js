// All characters below U+0020 must be escaped.
for (let code = 0; code < 0x20; code++) {
  throws(SyntaxError, () => JSON.parse(`"${String.fromCharCode(code)}"`), `U+${code.toString(16)}`);
}
same(JSON.parse('"\\u0000"'), "\0", "escaped");
