// Nor as JSON.
const made = await import("data:application/json,[7]", { with: { type: "json" } });
same(made.default[0], 7, "value");
