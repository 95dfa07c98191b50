// One script instead of a dozen tool calls: who has more open issues than hours this week?
import * as tracker from "@codemode/servers/tracker"; // an MCP server over stdio, its own process
import * as local from "@codemode/servers/local"; //     Python functions, in the broker

const { issues } = await tracker.list_issues({ status: "open" });
const byPerson = Map.groupBy(issues.filter((issue) => issue.assignee), (issue) => issue.assignee);
const plan = await Promise.all([...byPerson].map(async ([person, theirs]) => {
  const { hours } = await local.capacity({ person });
  const wanted = theirs.reduce((sum, issue) => sum + (issue.estimate_hours ?? 2), 0);
  return { person, issues: theirs.length, wanted, hours };
}));

const overloaded = plan.filter(({ wanted, hours }) => wanted > hours);
for (const { person, wanted, hours } of overloaded) {
  console.warn(`${person} has ${wanted} h of work and ${hours} h of time`);
  await tracker.add_comment({ id: byPerson.get(person)[0].id, text: `${person} needs help with this.` });
}
try {
  await tracker.get_issue({ id: 9999 });
} catch (error) {
  console.log(`${error.name}: ${error.message}`); // a failed call is an exception, not the end
}
globalThis.__codemode_result__ = { open: issues.length, overloaded };
