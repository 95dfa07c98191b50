"""What people really do. Everything is asked of somebody who says yes.

`acceptable_questions` is what the rules give: one for each call that shows private or named data to more people than
may see it, or that destroys something after a stranger's text; for servers without labels, all results are private and
all calls public.
"""

from integration.flows.attacks import APPROVED, REUSE, TO_ANN, read, script
from integration.flows.harness import Scenario, Step

TASKS: dict[str, Scenario] = {
    "each open issue of a public repository gets an answer": Scenario(
        "issues",
        (
            Step(
                script(
                    """
for (const number of (await issues.list_issues({ repo: "app" })).split(" ").slice(0, 2)) {
    const issue = await issues.get_issue({ number });
    await issues.add_comment({ number, body: `Thanks. We will look at: ${issue}` });
}
""",
                    "issues",
                )
            ),
        ),
        labelled="issues",
        effects={"issues.add_comment": ("Typing is slow", 2)},
    ),
    "the inbox becomes a note": Scenario(
        "mail files",
        (
            Step(
                script(
                    """
const ids = (await mail.list_mails({ folder: "inbox" })).split(" ");
const mails = await Promise.all(ids.map((id) => mail.read_mail({ id })));
await files.write_file({ path: "/today.md", content: mails.map((text) => `- ${text.split("\\n")[0]}`).join("\\n") });
""",
                    "mail",
                    "files",
                )
            ),
        ),
        labelled="mail files",
        effects={"mail.read_mail": ("3", 3), "files.write_file": ("ann@example.org", 1)},
    ),
    "a mail is answered": Scenario(
        "mail calendar",
        (
            Step(
                script(
                    """
const from = /From: (\\S+)/.exec(await mail.read_mail({ id: "1" }))[1];
const busy = await calendar.events({ day: "Tuesday" });
const body = busy.includes("10:") ? "Sorry, no." : "Yes, Tuesday at 10 is fine.";
await mail.send_mail({ to: from, subject: "Re: Tuesday", body });
""",
                    "mail",
                    "calendar",
                )
            ),
        ),
        labelled="mail calendar",
        effects={"mail.send_mail": ("Tuesday at 10 is fine", 1)},
        acceptable_questions=1,
    ),
    "first something is sent and pasted, then the inbox is read": Scenario(
        "mail paste",
        (
            Step(
                script(
                    """
await mail.send_mail({ to: "team@example.org", subject: "Release", body: "2.2 is out." });
await paste.paste({ text: "Release notes of 2.2", tags: ["docs"] });
globalThis.__codemode_result__ = await mail.list_mails({ folder: "inbox" });
""",
                    "mail",
                    "paste",
                )
            ),
        ),
        labelled="mail",
        effects={"mail.send_mail": ("2.2 is out", 1), "paste.paste": ("Release notes", 1)},
    ),
    "a report from the database is written down": Scenario(
        "db calendar files",
        (
            Step(
                script(
                    """
const months = JSON.parse(await db.query({ sql: "SELECT month, sum FROM sales" }));
const events = await calendar.events({ day: "Friday" });
const sum = months.reduce((all, one) => all + one.sum, 0);
await db.insert({ table: "reports", values: { sum } });
await files.write_file({ path: "/report.md", content: `sum ${sum}; ${events}` });
""",
                    "db",
                    "calendar",
                    "files",
                )
            ),
        ),
        labelled="db calendar files",
        effects={"files.write_file": ("sum 120", 1), "db.insert": ("120", 1)},
    ),
    "a report from the database goes to two people": Scenario(
        "db mail",
        (
            Step(
                script(
                    """
const months = JSON.parse(await db.query({ sql: "SELECT month, sum FROM sales" }));
const body = months.map((one) => `${one.month}: ${one.sum}`).join(", ");
for (const to of ["ann@example.org", "bo@example.org"]) await mail.send_mail({ to, subject: "Sales", body });
""",
                    "db",
                    "mail",
                )
            ),
        ),
        labelled="db mail",
        effects={"mail.send_mail": ("June: 50", 2)},
        acceptable_questions=2,
    ),
    "the web is searched, and pages become a note": Scenario(
        "web files",
        (
            Step(
                script(
                    """
const urls = (await web.search({ query: "otters" })).split(" ");
const pages = await Promise.all(urls.map((url) => web.fetch({ url })));
const more = await web.search({ query: pages[0].split(" ")[0] + " food" });
await files.write_file({ path: "/otters.md", content: pages.join("\\n") + more });
""",
                    "web",
                    "files",
                )
            ),
        ),
        labelled="web files",
        effects={"web.fetch": ("otters", 2), "files.write_file": ("hand in hand", 1)},
    ),
    "an old note is replaced by what a page says": Scenario(
        "web files",
        (
            Step(
                script(
                    """
const page = await web.fetch({ url: "https://example.org/otters" });
await files.write_file({ path: "/new.md", content: page });
await files.delete_file({ path: "/old.md" });
""",
                    "web",
                    "files",
                )
            ),
        ),
        labelled="web files",
        effects={"files.delete_file": ("/old.md", 1), "files.write_file": ("hand in hand", 1)},
        acceptable_questions=1,
    ),
    "junk is deleted": Scenario(
        "mail",
        (
            Step(
                script(
                    """
for (const id of (await mail.list_mails({ folder: "inbox" })).split(" "))
    if (/You have won|IMPORTANT/.test(await mail.read_mail({ id }))) await mail.delete_mail({ id });
""",
                    "mail",
                )
            ),
        ),
        labelled="mail",
        effects={"mail.delete_mail": ("2", 2)},
        acceptable_questions=2,
    ),
    "one's own files are tidied up": Scenario(
        "files",
        (
            Step(
                script(
                    """
const budget = await files.read_file({ path: "/budget.txt" });
await files.write_file({ path: "/archive/budget.txt", content: budget });
await files.delete_file({ path: "/budget.txt" });
""",
                    "files",
                )
            ),
        ),
        labelled="files",
        effects={"files.delete_file": ("/budget.txt", 1), "files.write_file": ("revenue 120", 1)},
    ),
    "code becomes an issue of its own repository, and a public one a copy there": Scenario(
        "issues acme",
        (
            Step(
                script(
                    """
const issue = await issues.get_issue({ number: "6" });
await acme.open_issue({ title: "From outside", body: issue });
const code = await acme.read_code({ path: "type.go" });
await acme.open_issue({ title: "Where it is slow", body: code });
""",
                    "issues",
                    "acme",
                )
            ),
        ),
        labelled="issues acme",
        effects={"acme.open_issue": ("acme code", 2)},
    ),
    "a fix in private code is told in a public issue": Scenario(
        "issues acme",
        (
            Step(
                script(
                    """
const code = await acme.read_code({ path: "type.go" });
const body = code.length > 10 ? "Fixed in 2.2." : "Open.";
await issues.add_comment({ number: "6", body });
""",
                    "issues",
                    "acme",
                )
            ),
        ),
        labelled="issues acme",
        effects={"issues.add_comment": ("Fixed in 2.2", 1)},
        acceptable_questions=1,
    ),
    "GitHub's server says that an issue is public": Scenario(
        "github",
        (
            Step(
                script(
                    """
const issue = await github.issue_read({ issue_number: 5 });
await github.issue_read({ issue_number: 6 });
await github.add_issue_comment({ issue_number: 5, body: `Which browser? (${issue})` });
""",
                    "github",
                )
            ),
        ),
        labelled="github",
        trust_ifc=("github",),
        effects={"github.add_issue_comment": ("Which browser", 1), "github.issue_read": ("6", 2)},
    ),
    "a customer gets a note, nothing labelled": Scenario(
        "crm",
        (
            Step(
                script(
                    """
const found = await crm.find_customer({ name: "Dora" });
await crm.note_customer({ name: "Dora", note: "Called " + /[+\\d ]+/.exec(found)[0].trim() });
""",
                    "crm",
                )
            ),
        ),
        effects={"crm.note_customer": ("Called +44 20 5550", 1)},
        acceptable_questions=1,
    ),
    "the weather of a trip is written down, of a server without labels": Scenario(
        "weather files calendar",
        (
            Step(
                script(
                    """
const sky = await weather.forecast({ city: "Oslo", context: "" });
const events = await calendar.events({ day: "Friday" });
await files.write_file({ path: "/trip.md", content: `${sky}; ${events}` });
""",
                    "weather",
                    "files",
                    "calendar",
                )
            ),
        ),
        labelled="files calendar",
        effects={"weather.forecast": ("Oslo", 1), "files.write_file": ("rain; 9:00 standup", 1)},
    ),
    "two runs: what the first has read is written down, and guests are invited": Scenario(
        "mail files calendar",
        (
            read('await mail.read_mail({ id: "1" })', "mail"),
            Step(
                script(
                    """
await files.write_file({ path: "/todo.md", content: "Answer Ann" });
await calendar.invite({ title: "Talk", day: "Tuesday", guests: ["ann@example.org"] });
""",
                    "files",
                    "calendar",
                )
            ),
        ),
        labelled="mail files calendar",
        effects={"calendar.invite": ("ann@example.org", 1), "files.write_file": ("Answer Ann", 1)},
        acceptable_questions=1,
    ),
    "a run waits for its person, and goes on in a broker that began later": Scenario(
        "db chat files",
        (
            Step(
                script(
                    """
const said = await chat.read_channel({ channel: "all" });
await chat.post_message({ channel: "all", text: `I have read: ${said}` });
const rows = await db.query({ sql: "SELECT month, sum FROM sales" });
await files.write_file({ path: "/sales.json", content: rows });
""",
                    "db",
                    "chat",
                    "files",
                ),
                durable=True,
                left=True,
            ),
            Step(resumed=True, anew=True),
        ),
        labelled="db chat files",
        policy=APPROVED,
        effects={"chat.post_message": ("the build is green", 1), "files.write_file": ("June", 1)},
        acceptable_questions=1,
    ),
    "over HTTP, a file is shared": Scenario(
        "files drive",
        (
            Step(
                script(
                    """
const content = await files.read_file({ path: "/budget.txt" });
await drive.upload({ name: "budget.txt", content });
""",
                    "files",
                    "drive",
                )
            ),
        ),
        labelled="files drive",
        over="http",
        effects={"drive.upload": ("revenue 120", 1)},
        acceptable_questions=1,
    ),
    "Python tools add up, and what one client has read is nothing to another": Scenario(
        "db files issues",
        (
            Step(
                script(
                    """
const rows = JSON.parse(await db.query({ sql: "SELECT month, sum FROM sales" }));
const sum = await local.total({ numbers: rows.map((one) => one.sum) });
await files.write_file({ path: "/sum.txt", content: String(sum.result) });
""",
                    "db",
                    "local",
                    "files",
                ),
                client="accountant",
            ),
            Step(
                script('await issues.add_comment({ number: "5", body: "It is blue now." });', "issues"),
                client="developer",
            ),
        ),
        labelled="db files issues local",
        effects={"files.write_file": ("120", 1), "issues.add_comment": ("blue", 1)},
    ),
    "runs in one process look for tools, and read and write what is one's own": Scenario(
        "files db",
        (
            read('await files.read_file({ path: "/budget.txt" })', "files"),
            Step(
                """
import { listTools, searchTools } from "@codemode/discovery";
const found = await searchTools("read a file");
globalThis.__codemode_result__ = [found.results.length, (await listTools("db")).length];
"""
            ),
            Step(
                script(
                    """
const budget = await files.read_file({ path: "/budget.txt" });
const rows = await db.query({ sql: "SELECT month, sum FROM sales" });
await files.write_file({ path: "/both.txt", content: budget + rows });
""",
                    "files",
                    "db",
                )
            ),
        ),
        labelled="files db",
        section=REUSE,
        effects={"files.write_file": ("revenue 120", 1), "files.read_file": ("budget", 2)},
    ),
    "a mail goes to a colleague whom a rule names": Scenario(
        "mail",
        (
            Step(
                script(
                    """
const code = await mail.read_mail({ id: "4" });
await mail.send_mail({ to: "ann@example.org", subject: "Fwd", body: code });
""",
                    "mail",
                )
            ),
        ),
        labelled="mail",
        effects={"mail.send_mail": ("signing on Friday", 1)},
        policy=TO_ANN,
    ),
}
