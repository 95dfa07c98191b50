"use strict";
// Everything that comes from scripts, tools and servers is hostile: it goes into text nodes and nowhere else.

const POLL_MS = 1000;
const KEPT_MS = 5000;
const TEXTS = { ok: "ok-text", parked: "warn-text" };
const WORDS = { parked: "waits for you", not_sent: "not sent" };
const worded = (outcome) => WORDS[outcome] ?? outcome;
const FOLDED_CHARS = 300; // What is longer leaves no room for the buttons on a phone.
const byId = (id) => document.getElementById(id);

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  if (options.text !== undefined) element.textContent = options.text;
  if (options.class) element.className = options.class;
  if (options.title) element.title = options.title;
  element.append(...children);
  return element;
}

const time = (ms) => ms == null ? "–"
  : ms < 1000 ? `${ms < 10 && !Number.isInteger(ms) ? ms.toFixed(1) : Math.round(ms)} ms`
  : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60000)} min ${Math.round(ms / 1000) % 60} s`;
const ago = (seconds) => seconds < 1 ? "now" : seconds < 60 ? `${Math.round(seconds)} s ago`
  : seconds < 3600 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;

// Keeps rows by their key, so that focus and scrolling survive an update.
function syncRows(body, items, key, create, update) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const wanted = items.map((item) => {
    const id = String(key(item));
    const row = known.get(id) ?? create(item);
    row.dataset.key = id;
    known.delete(id);
    update(row, item);
    return row;
  });
  for (const gone of known.values()) gone.remove();
  wanted.forEach((row, at) => {
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  });
  const empty = byId(`${body.id}-empty`);
  if (empty) empty.hidden = items.length > 0;
}

function cells(row, values) {
  values.forEach((value, at) => {
    const cell = row.cells[at] ?? row.insertCell();
    const [text, style = "", title = ""] = Array.isArray(value) ? value : [value];
    if (text instanceof Node) {
      if (cell.firstChild !== text) cell.replaceChildren(text);
    } else if (cell.textContent !== String(text)) cell.textContent = text;
    cell.className = style;
    cell.title = title;
  });
}

function runRow(item) {
  const button = make("button", { class: "run", text: item.id.slice(0, 8), title: "Timeline and logs" });
  button.type = "button";
  button.setAttribute("aria-haspopup", "dialog");
  const row = make("tr", { class: "opens" });
  // Enter and Space on the button are clicks, too. Whoever has marked some text wants to copy it.
  row.addEventListener("click", (event) => {
    if (event.target === button || getSelection().isCollapsed) openRun(item.id);
  });
  row.insertCell().append(button);
  return row;
}

function tiles(state) {
  const { pool, runs, latency } = state;
  const failed = runs.total - (runs.byOutcome.ok ?? 0) - (runs.byOutcome.parked ?? 0);
  const last = state.perSecond.slice(-10);
  const rate = last.reduce((sum, [all]) => sum + all, 0) / last.length;
  const shown = [
    ["Places", `${pool.running} / ${pool.capacity}`, `${pool.hostCount} worker host${pool.hostCount === 1 ? "" : "s"}`,
      pool.capacity ? pool.running / pool.capacity : 0],
    ["Queue", pool.queued, `of ${pool.queueSize}`, pool.queueSize ? pool.queued / pool.queueSize : 0],
    ["Warm workers", `${pool.warm} / ${pool.warmWanted}`, pool.booting ? `${pool.booting} booting` : "",
      pool.warmWanted ? pool.warm / pool.warmWanted : 0],
    ["Runs per second", rate.toFixed(1), "mean of 10 s"],
    ["Run time p50", time(latency.run.p50), `p95 ${time(latency.run.p95)}, p99 ${time(latency.run.p99)}`],
    ["Queue wait p95", time(latency.queue.p95), `p50 ${time(latency.queue.p50)}`],
    ["Runs", runs.total, failed ? `${failed} with an error` : "all well"],
  ];
  const box = byId("tiles");
  shown.forEach(([label, value, note, share], at) => {
    let tile = box.children[at];
    if (!tile) {
      tile = make("div", { class: "tile" }, make("div", { class: "label" }), make("div", { class: "value" }),
        make("div", { class: "note" }), make("div", { class: "meter" }, make("i")));
      box.append(tile);
    }
    const [name, number, more, meter] = tile.children;
    name.textContent = label;
    number.textContent = value;
    more.textContent = note;
    meter.hidden = share === undefined;
    meter.firstChild.style.width = `${Math.min(100, (share ?? 0) * 100)}%`;
    meter.firstChild.className = label !== "Warm workers" && share >= 0.9 ? "full" : "";
  });
}

function rate(series) {
  const most = Math.max(1, ...series.map(([all]) => all));
  const width = 600 / series.length;
  const bars = series.flatMap(([all, failed], at) =>
    [[all - failed, "ok", failed], [failed, "bad", 0]].filter(([count]) => count > 0).map(([count, kind, below]) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const height = count / most * 78;
      bar.setAttribute("x", at * width);
      bar.setAttribute("width", width * 0.8);
      bar.setAttribute("y", 80 - height - below / most * 78);
      bar.setAttribute("height", height);
      bar.setAttribute("class", kind);
      return bar;
    }));
  byId("rate").replaceChildren(...bars);
  byId("rate-most").textContent = `— highest: ${most} in a second`;
}

function show(state) {
  tiles(state);
  rate(state.perSecond);
  syncRows(byId("live"), state.live, (run) => run.id, runRow, (row, run) => cells(row, [
    row.cells[0].firstChild, run.state, [time(run.elapsedMs), "n"], [run.calls, "n"],
    [run.lastLog ?? run.call ?? "", "", run.lastLog ?? run.call ?? ""],
  ]));
  follow(state.recent);
  // Of a run that has gone on since it waited, what it came to.
  const latest = state.recent.filter((run, at, all) => all.findIndex((one) => one.id === run.id) === at);
  syncRows(byId("recent"), latest, (run) => run.id, runRow, (row, run) => cells(row, [
    row.cells[0].firstChild, [worded(run.outcome), TEXTS[run.outcome] ?? "bad-text"],
    [time(run.elapsedMs), "n"], [time(run.queueMs), "n"], [run.calls, "n"],
    ago(state.time - run.acceptedAt - run.elapsedMs / 1000),
  ]));
  syncRows(byId("upstreams"), state.upstreams, (server) => server.name, () => make("tr"), (row, server) => {
    const all = Object.values(server.calls).reduce((sum, count) => sum + count, 0);
    const failed = (server.calls.failed ?? 0) + (server.calls.uncertain ?? 0);
    const ready = server.state === "ready";
    cells(row, [server.name, [ready ? "ready" : `${server.state}: ${server.reason}`, ready ? "ok-text" : "bad-text",
      server.reason], [server.tools, "n"], [all, "n"], [failed, failed ? "n bad-text" : "n"],
      [time(server.latency.p50), "n"], [time(server.latency.p95), "n"]]);
  });
  syncRows(byId("knowledge"), state.knowledge, (server) => server.id, () => make("tr"), (row, server) => {
    const stack = make("div", { class: "stack" });
    const kinds = ["given", "declared", "observed", "unknown"];
    for (const kind of kinds) {
      const part = make("span", { class: kind });
      part.style.flexGrow = server[kind];
      if (server[kind]) stack.append(part);
    }
    const said = kinds.filter((kind) => server[kind]).map((kind) => `${server[kind]} ${kind}`).join(", ");
    stack.setAttribute("role", "img");
    stack.setAttribute("aria-label", said);
    cells(row, [server.id, [server.tools, "n"], [stack, "", said], [server.samples, "n"]]);
  });
  layers(state.pool.hosts);
  const status = byId("status");
  status.className = "";
  const text = `version ${state.version} · up ${time(state.uptimeSeconds * 1000)}`;
  // A live region is read aloud: only what has gone wrong is worth that.
  status.setAttribute("aria-live", "off");
  status.textContent = text;
}

// What the hosts put around each script, `pool.reuse` among it, and what they lack.
function layers(hosts) {
  const once = (name) => [...new Set(hosts.flatMap((host) => host[name]))].map((text) => ({ text, name }));
  syncRows(byId("layers"), [...once("layers"), ...once("missing")], ({ name, text }) => `${name} ${text}`,
    () => make("li"), (row, { name, text }) => {
      if (row.textContent) return;
      row.textContent = name === "missing" ? `missing: ${text}` : text;
      row.className = name === "missing" ? "warn-text" : "";
    });
}

let keptAt = -Infinity;

let loginsAt = -Infinity;

async function showLogins(now) {
  if (performance.now() - loginsAt < KEPT_MS) return;
  loginsAt = performance.now();
  const response = await fetch("/dashboard/logins", { headers: keyed() });
  if (!response.ok) return;
  const { logins, error = "" } = await response.json();
  byId("logins-part").hidden = logins.length === 0 && !error;
  byId("logins-error").hidden = !error;
  byId("logins-error").textContent = error;
  syncRows(byId("logins"), logins, (one) => `${one.server} ${one.principal} ${one.url}`, () => make("tr"), (row, one) => {
    const place = row.querySelector("a") ?? make("a", { text: one.server });
    if (one.hasPage) place.href = `/login/${encodeURIComponent(one.server)}`;
    const whose = one.principal || (one.isShared ? "all" : one.principal === null ? "–" : "user of this machine");
    const good = one.state === "logged in";
    const since = (seconds) => seconds ? ago(now - seconds) : "–";
    cells(row, [one.hasPage ? place : one.server, [whose, "", whose], [one.state === "none" ? "no login" : one.state, good ? "ok-text" : "bad-text", one.problem ?? ""],
      since(one.since), since(one.renewedAt), [one.scope ?? "–", "", one.scope ?? ""]]);
  });
}

function endOf({ outcome, state }) {
  const end = outcome ?? (state === "parked" ? state : "no end");
  return [worded(end), TEXTS[end] ?? (outcome ? "bad-text" : "")];
}

async function showKept() {
  if (performance.now() - keptAt < KEPT_MS) return;
  keptAt = performance.now();
  const response = await fetch("/dashboard/kept");
  if (!response.ok) return;
  const { runs, error = "" } = await response.json();
  byId("kept-part").hidden = runs.length === 0 && !error;
  byId("kept-error").hidden = !error;
  byId("kept-error").textContent = error;
  syncRows(byId("kept"), runs, (run) => run.id, runRow, (row, run) => cells(row, [
    row.cells[0].firstChild, endOf(run),
    [run.principal, "", run.principal], [run.calls, "n"], ago(Date.now() / 1000 - run.acceptedAt),
  ]));
}

// ---- runs that wait for a person --------------------------------------------------------------------------

// The cookie alone changes nothing. The key comes in the fragment of the address, which no server is sent.
const KEY = "cellblock-key";
let key = "";

function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  try {
    if (given) sessionStorage.setItem(KEY, given);
    key = given ?? sessionStorage.getItem(KEY) ?? "";
  } catch { key = given ?? ""; /* it holds until the page is left */ }
  if (given) history.replaceState(null, "", location.pathname);
}

const keyed = () => key ? { "X-Cellblock-Key": key } : {};
const until = (seconds) => seconds < 60 ? "less than a minute" : seconds < 3600 ? `${Math.round(seconds / 60)} min`
  : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
const nameOf = (question) => `${question.server}.${question.tool}`;
const countOf = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;

// The run that was answered last, until it is said how it went on.
let followed = "";

function tell(text, style = "bad-text") {
  byId("parked-said").textContent = text;
  byId("parked-said").className = `panel wide ${style}`;
}

function follow(recent) {
  const run = recent.find((one) => one.id === followed);
  if (!run || run.outcome === "parked") return;
  tell(`Run ${followed.slice(0, 8)} has ended: ${run.outcome}. Its client has the response.`, TEXTS[run.outcome]);
  followed = "";
  keptAt = -Infinity;
}

let parkedAt = -Infinity;
let parkedCount = 0;
let parkedAsked = 0;
let parkedError = "";

async function showParked(count) {
  if (count === parkedCount && performance.now() - parkedAt < KEPT_MS) return;
  parkedAt = performance.now();
  parkedCount = count;
  const asked = ++parkedAsked;
  const response = await fetch("/dashboard/parked", { headers: keyed() });
  if (!response.ok) return;
  const { runs, decides, error = "" } = await response.json();
  if (asked !== parkedAsked) return;
  if (error !== parkedError) tell(parkedError = error);
  byId("parked-part").hidden = runs.length === 0;
  byId("parked-how").hidden = decides || runs.length === 0;
  byId("waiting").hidden = runs.length === 0;
  byId("waiting").textContent = `${runs.length} waiting for you`;
  document.title = runs.length ? `(${runs.length}) Cellblock` : "Cellblock";
  // The oldest first: what comes later moves no button under a pointer.
  const items = runs.reverse().flatMap((run) => [{ run, key: run.id },
    ...run.questions.map((question) => ({ run, question, key: `${run.id} ${question.number}` }))]);
  syncRows(byId("parked"), items, (item) => item.key, parkedRow, (row, item) => {
    row.shown = item;
    for (const button of row.querySelectorAll(".answers button")) button.disabled = !decides;
    if (!item.question) parkedRun(row, item.run);
  });
}

function parkedRow(item) {
  return item.question ? questionRow(item) : parkedRunRow(item);
}

function answerButton(row, text, name, word) {
  const button = make("button", { text });
  button.type = "button";
  button.setAttribute("aria-label", name);
  button.addEventListener("click", () => {
    const { run, question } = row.shown;
    decide(row, run, word, question ? [question] : run.questions);
  });
  return button;
}

function parkedRunRow(item) {
  const row = make("tr", { class: "parked-run" });
  const open = make("button", { class: "run", text: item.run.id.slice(0, 8), title: "Timeline and logs" });
  open.type = "button";
  open.setAttribute("aria-haspopup", "dialog");
  open.addEventListener("click", () => openRun(item.run.id));
  const of = `run ${item.run.id.slice(0, 8)}`;
  const cancel = answerButton(row, "Cancel run", `Cancel ${of}`, "cancel");
  cancel.className = "cancel";
  row.append(make("td", {}, open, " ", make("span", { class: "empty" })), make("td", { class: "answer" },
    make("div", { class: "answers" }, answerButton(row, "Allow all", `Allow all calls of ${of}`, "approve"),
      answerButton(row, "Refuse all", `Refuse all calls of ${of}`, "deny"), cancel)));
  return row;
}

function parkedRun(row, run) {
  const now = Date.now() / 1000;
  const text = `of ${run.principal}, began ${ago(now - run.since)}, waits ${
    run.until === null ? "without end" : `${until(run.until - now)} more`} for ${countOf(run.questions.length, "answer")}`;
  const about = row.querySelector("span");
  if (about.textContent !== text) about.textContent = text;
  for (const button of row.querySelectorAll("button:not(.run, .cancel)")) button.hidden = run.questions.length < 2;
}

function questionRow(item) {
  const row = make("tr", { class: "parked-call" });
  const question = make("td", { class: "question" }, ...described(item.question));
  const { fields = [] } = item.question;
  if (fields.length) question.append(make("div", { class: "fields" }, ...fields.map(fieldOf)));
  const of = `call ${item.question.call}: ${nameOf(item.question)}`;
  row.append(question, make("td", { class: "answer" }, make("div", { class: "answers" },
    answerButton(row, "Allow", `Allow ${of}`, "approve"), answerButton(row, "Refuse", `Refuse ${of}`, "deny"))));
  return row;
}

function described(question) {
  const parts = [make("strong", { text: nameOf(question), title: `Call ${question.call}` })];
  if (question.kind !== "approval") {
    const what = question.kind === "login" ? "It needs a login" : "Its server asks";
    parts.push(make("p", { text: `${what}: ${question.said || question.kind}` }));
  }
  if (question.destructive) parts.push(make("span", { class: "bad-text", text: " can destroy data" }));
  if (question.rule) parts.push(make("p", { text: question.said }));
  if (question.input === undefined) return parts;
  const input = make("pre", {}, ...marked(question.input, question.found ?? []));
  input.tabIndex = 0;
  input.setAttribute("aria-label", `Input of call ${question.call}`);
  const begun = `${question.input.slice(0, FOLDED_CHARS / 2)}… `;
  const more = `all of its input: ${question.input.length.toLocaleString("en")} characters`;
  parts.push(question.input.length <= FOLDED_CHARS ? input
    : make("details", {}, make("summary", {}, make("code", { text: begun }), make("u", { text: more })), input));
  if (question.rule) {
    const box = make("input");
    box.type = "checkbox";
    box.className = "always";
    parts.push(make("label", { class: "choice" }, box, make("span", { text: " Always, with this rule in cellblock.policy.flows" })), make("pre", { text: question.rule }));
  }
  if (!question.whole) {
    parts.push(make("span", { class: "warn-text", text: `The beginning; it has ${question.bytes} bytes in all.` }));
  }
  return parts;
}

// A text, with what was found in it of what the run has read.
function marked(text, found) {
  const one = found.find((part) => text.includes(part));
  if (one === undefined) return [text];
  const at = text.indexOf(one);
  return [...marked(text.slice(0, at), found), make("mark", { text: one }), ...marked(text.slice(at + one.length), found)];
}

function fieldOf(field) {
  const input = make(field.options ? "select" : "input");
  if (field.options) input.append(...["", ...field.options].map((text) => make("option", { text })));
  else if (field.type === "boolean") input.type = "checkbox";
  input.dataset.name = field.name;
  input.dataset.type = field.type;
  return make("label", { text: `${field.title}${field.required ? " *" : ""} ` }, input);
}

function filledIn(row) {
  const form = {};
  for (const input of row.querySelectorAll(".fields [data-name]")) {
    const { name, type } = input.dataset;
    if (type === "boolean") form[name] = input.checked;
    else if (input.value === "") continue;
    else if (type === "number" || type === "integer") form[name] = Number(input.value);
    else if (type === "array") form[name] = input.value.split(",").map((one) => one.trim());
    else form[name] = input.value;
  }
  return form;
}

async function decide(row, run, word, questions) {
  const risky = word === "approve" ? questions.filter((question) => question.destructive) : [];
  if (risky.length && !(await isConfirmed(risky))) return;
  // The calls that were shown: one that the run asks for later is not among them.
  const body = word === "cancel" ? {} : { calls: questions.map((question) => question.number) };
  if (word === "approve" && row.querySelector(".fields")) body.form = filledIn(row);
  if (word === "approve" && row.querySelector(".always:checked")) body.always = true;
  for (const button of row.querySelectorAll(".answers button")) button.disabled = true;
  followed = "";
  let said;
  try {
    const response = await fetch(`/dashboard/parked/${encodeURIComponent(run.id)}/${word}`, {
      method: "POST", headers: { "Content-Type": "application/json", ...keyed() }, body: JSON.stringify(body) });
    const { ok, status } = response;
    if (ok) followed = run.id;
    said = ok ? await answered(response, run, word, questions) : status === 404 || status === 409 ? `Run ${run.id.slice(0, 8)} no longer waits for this answer.`
      : status === 422 ? await response.text()
      : status === 401 || status === 403 ? "This tab may not answer: open the URL that `cellblock dashboard` prints."
      : `The answer was not taken: the daemon answers with status ${status}.`;
  } catch { said = "The answer was not taken: the daemon does not answer."; }
  tell(said, followed && "ok-text");
  parkedAt = -Infinity;
  await showParked(parkedCount).catch(() => { /* the next poll says it */ });
  if (!row.isConnected) (firstAnswer() ?? byId("parked-said")).focus();
}

// What was done, and what comes next.
async function answered(response, run, word, questions) {
  const id = run.id.slice(0, 8);
  if (word === "cancel") return `Run ${id} is cancelled.`;
  const { left } = await response.json();
  const next = left.length ? `still waits for ${countOf(left.length, "answer")}` : "goes on";
  return `${word === "approve" ? "Allowed" : "Refused"}: ${questions.map(nameOf).join(", ")}. Run ${id} ${next}.`;
}

const firstAnswer = () => byId("parked").querySelector(".answers button:enabled:not([hidden], .cancel)");

function isConfirmed(questions) {
  const dialog = byId("confirm");
  byId("confirm-calls").replaceChildren(...questions.map((question) => make("li", {}, ...described(question))));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// ---- one run ----------------------------------------------------------------------------------------------

let openId = null;

async function keepRun() {
  const id = openId, name = prompt("Its name: words of a-z and 0-9, with _ between them");
  if (!name) return;
  let said = "It was not kept: the daemon does not answer.";
  try {
    const path = `/dashboard/scripts/${encodeURIComponent(id)}/${encodeURIComponent(name)}`;
    const response = await fetch(path, { method: "POST", headers: keyed() });
    said = response.ok ? `Kept. It runs when it is approved: cellblock scripts approve ${name}`
      : response.status === 422 ? await response.text() : `It was not kept: status ${response.status}.`;
  } catch { /* said already */ }
  if (openId === id) byId("detail-kept").textContent = said;
}

async function openRun(id) {
  openId = id;
  byId("detail-kept").textContent = "";
  await showRun();
  if (openId === id && !byId("detail").open) byId("detail").showModal();
}

function lane(name, start, length, whole, kind, label) {
  const bar = make("i", { class: kind });
  bar.style.left = `${Math.min(100, start / whole * 100)}%`;
  bar.style.width = `${Math.min(100, length / whole * 100)}%`;
  return make("div", { class: "lane" }, make("span", { class: "name", text: name, title: name }),
    make("div", { class: "track" }, bar), make("span", { class: "n", text: label }));
}

async function showRun() {
  const response = await fetch(`/dashboard/runs/${encodeURIComponent(openId)}`);
  const title = byId("detail-title");
  if (!response.ok) {
    title.textContent = `Run ${openId}: no longer remembered`;
    return;
  }
  const run = await response.json();
  if (run.id !== openId) return;
  title.textContent = `Run ${run.id}`;
  const facts = [["Outcome", worded(run.outcome)], ["State", worded(run.state)], ["Client", run.client],
    ["Accepted", new Date(run.acceptedAt * 1000).toLocaleString()], ["Script", `${run.scriptChars} characters`]];
  if (run.usage) facts.push(["Used", `CPU ${time(run.usage.cpuMs)}, memory ${
    (run.usage.peakMemoryBytes / 1048576).toFixed(1)} MiB, waited for tools ${time(run.usage.toolWaitMs)}`]);
  if (run.usage) facts.push(["Process", run.usage.reused == null ? "of this run alone"
    : `had served ${countOf(run.usage.reused, "run")} before; between them is a V8 context, which is hygiene and no wall`]);
  if (run.workerEnd) facts.push(["Worker", run.workerEnd]);
  if (run.kept) facts.push(["Replay", `cellblock replay ${run.id}`]);
  byId("detail-keep").hidden = !run.kept || run.outcome !== "ok" || !keyed()["X-Cellblock-Key"];
  byId("detail-facts").replaceChildren(...facts.flatMap(([name, value]) =>
    [make("dt", { text: name }), make("dd", { text: value })]));
  const whole = Math.max(run.elapsedMs, 1);
  const { queued = whole, leased = whole, started = whole } = run.steps;
  const steps = [["plan", 0, queued], ["queue", queued, leased], ["worker", leased, started], ["script", started, whole]];
  byId("detail-steps").replaceChildren(
    ...steps.map(([name, from, to]) => lane(name, from, to - from, whole, "step", time(to - from))),
    ...run.timeline.map((call) => lane(`${call.server}.${call.tool}`, call.atMs, call.durationMs, whole,
      { ok: "", running: "now", not_sent: "step" }[call.outcome] ?? "bad",
      call.outcome !== "ok" ? worded(call.outcome) : call.durationMs ? time(call.durationMs) : "<1 ms")));
  byId("detail-diagnostics").replaceChildren(...(run.diagnostics.length ? run.diagnostics.map((entry) =>
    make("li", { text: `${entry.code}: ${entry.message}`, class: entry.severity === "error" ? "bad-text" : "" }))
    : [make("li", { text: "none" })]));
  byId("detail-script-part").hidden = run.script === undefined;
  if (byId("detail-script").textContent !== (run.script ?? "")) byId("detail-script").textContent = run.script ?? "";
  const left = run.logsLeftOut ? [make("div", { class: "debug", text: `log entries that are not shown: ${run.logsLeftOut}` })] : [];
  byId("detail-logs").replaceChildren(...left, ...run.logs.map((entry) =>
    make("div", { class: entry.level, text: `${String(entry.timeMs).padStart(6)} ms  ${entry.message}` })));
}

// ---- polling ----------------------------------------------------------------------------------------------

let paused = false;
let busy = false;

async function poll() {
  if (paused || busy || document.hidden) return;
  busy = true;
  try {
    const response = await fetch("/dashboard/state");
    if (response.status === 401) throw new Error("signed out: open the URL that `cellblock dashboard` prints");
    if (!response.ok) throw new Error(`the daemon answers with status ${response.status}`);
    const state = await response.json();
    show(state);
    await showParked(state.parked);
    await showKept();
    await showLogins(state.time);
    if (byId("detail").open && openId) await showRun();
  } catch (error) {
    const status = byId("status");
    const text = error instanceof TypeError ? "the daemon does not answer" : error.message;
    status.className = "lost";
    status.setAttribute("aria-live", "polite");
    if (status.textContent !== text) status.textContent = text;
  } finally {
    busy = false;
  }
}

// ---- controls ---------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
let theme = "system";
try { theme = localStorage.getItem("theme") ?? "system"; } catch { /* no storage: as the system has it */ }

function applyTheme() {
  if (!THEMES.includes(theme)) theme = "system";
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}

function switchTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("theme", theme); } catch { /* it holds until the page is left */ }
  applyTheme();
}

function switchPause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Go on" : "Pause";
  poll();
}

function step(by) {
  const buttons = [...document.querySelectorAll("main button.run")];
  const at = buttons.indexOf(document.activeElement);
  if (at >= 0) buttons[Math.max(0, Math.min(buttons.length - 1, at + by))].focus();
  return at >= 0;
}

function toParked() {
  (firstAnswer() ?? byId("parked-title")).focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const open = byId("detail").open || byId("keys").open || byId("confirm").open;
  if (event.key === "p") switchPause();
  else if (event.key === "t") switchTheme();
  else if (open) return;
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "w") toParked();
  else if (event.key === "r") (document.querySelector("#recent button.run") ?? byId("recent-title")).focus();
  else if (event.key === "ArrowDown" && step(1)) event.preventDefault();
  else if (event.key === "ArrowUp" && step(-1)) event.preventDefault();
});

byId("theme").addEventListener("click", switchTheme);
byId("pause").addEventListener("click", switchPause);
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("detail-close").addEventListener("click", () => byId("detail").close());
byId("detail-keep").addEventListener("click", keepRun);
byId("confirm-yes").addEventListener("click", () => byId("confirm").close("yes"));
byId("confirm-no").addEventListener("click", () => byId("confirm").close(""));
byId("waiting").addEventListener("click", toParked);
byId("keys-close").addEventListener("click", () => byId("keys").close());
byId("detail").addEventListener("close", () => { openId = null; });
document.addEventListener("visibilitychange", poll);
applyTheme();
takeKey();
setInterval(poll, POLL_MS);
poll();
