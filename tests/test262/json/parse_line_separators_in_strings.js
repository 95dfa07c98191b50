// U+2028 and U+2029 may stand in a string.
same(JSON.parse('"\u2028\u2029"').length, 2, "length");
