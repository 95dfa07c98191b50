// A failed import may be tried again, and fails again.
for (let attempt = 0; attempt < 3; attempt++) {
  let outcome = "found";
  try {
    await import("./no_such_module.js");
  } catch {
    outcome = "rejected";
  }
  same(outcome, "rejected", `attempt ${attempt}`);
}
