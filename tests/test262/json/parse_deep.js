// Depth is no reason to fail.
let depth = 0;
for (let at = JSON.parse("[".repeat(5000) + "]".repeat(5000)); at !== undefined; at = at[0]) depth++;
same(depth, 5000, "depth");
