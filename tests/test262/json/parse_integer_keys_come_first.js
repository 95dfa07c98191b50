// Keys that are array indices come first, ascending.
sameList(Object.keys(JSON.parse('{"b":1,"2":1,"a":1,"1":1}')), ["1", "2", "b", "a"], "keys");
