"use strict";
// Everything that comes from scripts, tools and servers is hostile: it goes into text nodes and nowhere else.

const POLL_MS = 1000;
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
  const failed = runs.total - (runs.byOutcome.ok ?? 0);
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
    [run.lastLog ?? "", "", run.lastLog ?? ""],
  ]));
  syncRows(byId("recent"), state.recent, (run) => run.id, runRow, (row, run) => cells(row, [
    row.cells[0].firstChild, [run.outcome, run.outcome === "ok" ? "ok-text" : "bad-text"],
    [time(run.elapsedMs), "n"], [time(run.queueMs), "n"], [run.calls, "n"],
    ago(state.time - run.acceptedAt - run.elapsedMs / 1000),
  ]));
  syncRows(byId("upstreams"), state.upstreams, (server) => server.name, () => make("tr"), (row, server) => {
    const all = Object.values(server.calls).reduce((sum, count) => sum + count, 0);
    const failed = all - (server.calls.ok ?? 0);
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
  const status = byId("status");
  status.className = "";
  const text = `version ${state.version} · up ${time(state.uptimeSeconds * 1000)}`;
  // A live region is read aloud: only what has gone wrong is worth that.
  status.setAttribute("aria-live", "off");
  status.textContent = text;
}

// ---- one run ----------------------------------------------------------------------------------------------

let openId = null;

async function openRun(id) {
  openId = id;
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
  const facts = [["Outcome", run.outcome], ["State", run.state], ["Client", run.client],
    ["Accepted", new Date(run.acceptedAt * 1000).toLocaleString()], ["Script", `${run.scriptChars} characters`]];
  if (run.usage) facts.push(["Used", `CPU ${time(run.usage.cpuMs)}, memory ${
    (run.usage.peakMemoryBytes / 1048576).toFixed(1)} MiB, waited for tools ${time(run.usage.toolWaitMs)}`]);
  if (run.workerEnd) facts.push(["Worker", run.workerEnd]);
  byId("detail-facts").replaceChildren(...facts.flatMap(([name, value]) =>
    [make("dt", { text: name }), make("dd", { text: value })]));
  const whole = Math.max(run.elapsedMs, 1);
  const { queued = whole, leased = whole, started = whole } = run.steps;
  const steps = [["plan", 0, queued], ["queue", queued, leased], ["worker", leased, started], ["script", started, whole]];
  byId("detail-steps").replaceChildren(
    ...steps.map(([name, from, to]) => lane(name, from, to - from, whole, "step", time(to - from))),
    ...run.timeline.map((call) => lane(`${call.server}.${call.tool}`, call.atMs, call.durationMs, whole,
      call.outcome === "ok" ? "" : call.outcome === "running" ? "now" : "bad",
      call.outcome !== "ok" ? call.outcome : call.durationMs ? time(call.durationMs) : "<1 ms")));
  byId("detail-diagnostics").replaceChildren(...(run.diagnostics.length ? run.diagnostics.map((entry) =>
    make("li", { text: `${entry.code}: ${entry.message}`, class: entry.severity === "error" ? "bad-text" : "" }))
    : [make("li", { text: "none" })]));
  byId("detail-script-part").hidden = run.script === undefined;
  if (byId("detail-script").textContent !== (run.script ?? "")) byId("detail-script").textContent = run.script ?? "";
  const left = run.logsLeftOut ? [make("div", { class: "debug", text: `(${run.logsLeftOut} earlier entries)` })] : [];
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
    show(await response.json());
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

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const open = byId("detail").open || byId("keys").open;
  if (event.key === "p") switchPause();
  else if (event.key === "t") switchTheme();
  else if (open) return;
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "r") (document.querySelector("#recent button.run") ?? byId("recent-title")).focus();
  else if (event.key === "ArrowDown" && step(1)) event.preventDefault();
  else if (event.key === "ArrowUp" && step(-1)) event.preventDefault();
});

byId("theme").addEventListener("click", switchTheme);
byId("pause").addEventListener("click", switchPause);
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("detail-close").addEventListener("click", () => byId("detail").close());
byId("keys-close").addEventListener("click", () => byId("keys").close());
byId("detail").addEventListener("close", () => { openId = null; });
document.addEventListener("visibilitychange", poll);
applyTheme();
setInterval(poll, POLL_MS);
poll();
