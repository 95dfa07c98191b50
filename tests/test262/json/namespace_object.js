// JSON is an ordinary object with a tag; neither function is a constructor.
same(Object.prototype.toString.call(JSON), "[object JSON]", "tag");
throws(TypeError, () => JSON(), "call");
throws(TypeError, () => new JSON.parse("1"), "new");
same(JSON.parse.length, 2, "parse.length");
same(JSON.stringify.length, 3, "stringify.length");
