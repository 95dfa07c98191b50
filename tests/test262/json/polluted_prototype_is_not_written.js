// What stands on Object.prototype is read by key only, and is gone in the next run.
Object.prototype.polluted = 1;
same(JSON.stringify({ own: 2 }), '{"own":2}', "text");
same(JSON.parse("{}").polluted, 1, "read");
