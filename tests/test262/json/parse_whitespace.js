// Exactly four characters are white space.
same(JSON.parse("\t\n\r 1"), 1, "the four");
for (const code of [0x0b, 0x0c, 0xa0, 0x2028, 0x2029, 0xfeff]) {
  throws(SyntaxError, () => JSON.parse(String.fromCharCode(code) + "1"), `U+${code.toString(16)}`);
}
