// Indices first, then strings in the order of their making.
same(JSON.stringify({ b: 1, 10: 1, a: 1, 9: 1 }), '{"9":1,"10":1,"b":1,"a":1}', "text");
