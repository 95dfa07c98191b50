// A date is its ISO string, an invalid one null.
same(JSON.stringify(new Date(0)), '"1970-01-01T00:00:00.000Z"', "date");
same(JSON.stringify(new Date(NaN)), "null", "invalid");
