// A lone surrogate is kept, written or escaped.
same(JSON.parse('"\ud800"').charCodeAt(0), 0xd800, "written");
same(JSON.parse('"\\udfff"').charCodeAt(0), 0xdfff, "escaped");
