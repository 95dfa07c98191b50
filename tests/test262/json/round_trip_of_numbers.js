// Numbers come back as they were.
for (const number of [0.1, 1e21, 1e-7, 2 ** 53, 5e-324, 1.7976931348623157e308, -1.5]) {
  same(JSON.parse(JSON.stringify(number)), number, `${number}`);
}
