// One script instead of a dozen tool calls: plan the week from open issues and the team's hours.
import * as tracker from "@codemode/servers/tracker"; // an MCP server over stdio, its own process
import * as local from "@codemode/servers/local"; //     Python functions, in the broker

const { issues } = await tracker.list_issues({ status: "open" });
const byPerson = Map.groupBy(issues.filter((issue) => issue.assignee), (issue) => issue.assignee);

const plan = await Promise.all(
  [...byPerson].map(async ([person, theirs]) => {
    const { hours } = await local.capacity({ person });
    const wanted = theirs.reduce((sum, issue) => sum + (issue.estimate_hours ?? 2), 0);
    const { result: done } = await local.finish_date({ start: "2025-06-02", hours: wanted });
    return { person, issues: theirs.length, wanted, hours, fits: wanted <= hours, done };
  }),
);

const overloaded = plan.filter((entry) => !entry.fits);
for (const entry of overloaded) {
  console.warn(`${entry.person} has ${entry.wanted} h of work and ${entry.hours} h of time`);
  const first = byPerson.get(entry.person)[0];
  console.log(await tracker.add_comment({ id: first.id, text: `Needs another owner: ${entry.person} is full.` }));
}

try {
  await tracker.get_issue({ id: 9999 });
} catch (error) {
  console.log(`${error.name}: ${error.message}`); // a failed call is an exception, not the end
}

globalThis.__codemode_result__ = { open: issues.length, plan, overloaded: overloaded.length };
