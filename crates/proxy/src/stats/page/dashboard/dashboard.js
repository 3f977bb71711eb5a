
"use strict";
// What is shown of each kind: its heading, its charts (figure, label, unit), and the columns of a table.
const KINDS = {
  process: ["Process", [["requests", "Requests", "/s"], ["connections", "New connections", "/s"],
    ["sessions", "Connections", ""], ["bytes_out", "Sent", "B/s"], ["busy", "Workers busy", "%"]]],
  frontend: ["Frontends", [["requests", "Requests", "/s"], ["connections", "New connections", "/s"],
    ["sessions", "Sessions", ""], ["bytes_in", "Received", "B/s"], ["bytes_out", "Sent", "B/s"],
    ["denied", "Denied requests", "/s"], ["errors", "Responses 5xx", "/s"]]],
  backend: ["Backends", [["requests", "Requests", "/s"], ["sessions", "Sessions", ""], ["queue", "Queue", ""],
    ["response_ms", "Response time", "ms"], ["bytes_out", "Sent", "B/s"],
    ["failed_connections", "Failed connections", "/s"], ["errors", "Responses 5xx", "/s"]]],
  store: ["Stores", [["commands", "Commands", "/s"], ["keys", "Keys", ""], ["memory", "Memory", "B"],
    ["misses", "Misses", "/s"], ["lock_waits", "Lock waits", "/s"], ["slow", "Slow commands", "/s"],
    ["evicted", "Evicted keys", "/s"]]],
  engine: ["Engines", [["commands", "Commands", "/s"], ["in_flight", "In flight", ""], ["queue", "Queue", ""],
    ["failed", "Failed commands", "/s"]]],
  limit: ["Limits", [["allowed", "Allowed", "/s"], ["denied", "Denied", "/s"], ["failed", "Not counted", "/s"]]],
};
const SERVER = [["check_status", "Check", ""], ["scur", "Sessions", ""], ["qcur", "Queue", ""], ["rate", "Sessions/s", ""],
  ["rtime", "Response", "ms"], ["hrsp_5xx", "5xx", ""], ["econ", "Failed conn.", ""], ["bout", "Sent", "B"],
  ["weight", "Weight", ""], ["lastchg", "In this state", "s"]];
// Objects of a kind whose charts are open at first.
const OPEN = 4;
// The fewest points that a chart has room for: a young process fills more than an edge of it.
const ROOM = 60;

const source = document.body.dataset.source, board = document.querySelector("main");
const said = document.querySelector("[role=status]");
const known = new Map();
let started = 0, last = 0, each = 5, most = 720, seen = new Date();

function make(name, parent, text, classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  if (parent) parent.append(element);
  return element;
}

function drawn(name, parent, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") return value < 60 ? `${value} s` : value < 3600 ? `${Math.floor(value / 60)} min` :
    value < 86400 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} d`;
  const bytes = unit.startsWith("B"), names = bytes ? ["", "k", "M", "G", "T", "P"] : ["", "k", "M", "G", "T"];
  let at = 0;
  while (Math.abs(value) >= (bytes || at ? 1000 : 10000) && at + 1 < names.length) { value /= 1000; at += 1; }
  const text = Number.isInteger(value) || value >= 100 ? Math.round(value).toString() : value.toFixed(value < 10 ? 2 : 1);
  return `${text}${unit || at ? "\u00a0" : ""}${names[at]}${unit}`;
}

// A chart of one figure; the newest point is at the right edge.
class Chart {
  constructor(parent, [figure, label, unit]) {
    Object.assign(this, {figure, label, unit, points: [], room: ROOM, cursor: null});
    const box = make("figure", parent), caption = make("figcaption", box);
    make("span", caption, label);
    this.now = make("b", caption, "–");
    this.svg = drawn("svg", box, {preserveAspectRatio: "none", role: "img", tabindex: 0});
    this.area = drawn("path", this.svg, {class: "area"});
    this.line = drawn("path", this.svg, {class: "line", "vector-effect": "non-scaling-stroke"});
    this.at = drawn("path", this.svg, {class: "at", "vector-effect": "non-scaling-stroke"});
    this.below = make("small", box, "", "axis");
    this.from = make("span", this.below);
    this.peak = make("span", this.below);
    const move = event => {
      const {left, width} = this.svg.getBoundingClientRect();
      this.cursor = Math.round((event.clientX - left) / width * (this.room - 1));
      this.draw();
    };
    this.svg.onpointermove = move;
    this.svg.onpointerdown = move;
    this.svg.onpointerleave = () => { this.cursor = null; this.draw(); };
    this.svg.onblur = this.svg.onpointerleave;
    this.svg.onkeydown = event => {
      const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60}[event.key];
      if (!step) return;
      event.preventDefault();
      this.cursor = Math.min(this.room - 1, Math.max(0, (this.cursor ?? this.room - 1) + step));
      this.draw();
    };
  }

  add(points, gap) {
    for (let missing = gap - points.length; missing > 0 && this.points.length; missing -= 1) this.points.push(null);
    this.points.push(...points);
    if (this.points.length > most) this.points.splice(0, this.points.length - most);
  }

  draw() {
    const {points, unit} = this, room = Math.max(ROOM, points.length), first = room - points.length;
    this.room = room;
    this.svg.setAttribute("viewBox", `0 0 ${room - 1} 100`);
    const highest = points.reduce((high, point) => Math.max(high, point ?? 0), 0), scale = 92 / (highest || 1);
    let line = "", area = "", open = false;
    points.forEach((point, index) => {
      const x = first + index;
      if (point === null) { open = false; return; }
      const y = (100 - point * scale).toFixed(1);
      line += `${open ? "L" : "M"}${x} ${y}`;
      area += open ? `L${x} ${y}` : `M${x} 100L${x} ${y}`;
      open = true;
      if (index + 1 < points.length && points[index + 1] === null) area += `L${x} 100`;
    });
    if (open) area += `L${room - 1} 100`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    const now = shown(points.at(-1), unit), top = shown(highest, unit);
    this.now.textContent = now;
    this.svg.setAttribute("aria-label", `${this.label}: now ${now}, highest of the last hour ${top}`);
    if (this.cursor === null) {
      this.at.setAttribute("d", "");
      this.from.textContent = `${Math.round(room * each / 60)} min`;
      this.peak.textContent = `highest ${top}`;
    } else {
      const at = Math.min(room - 1, Math.max(0, this.cursor));
      this.at.setAttribute("d", `M${at} 0V100`);
      const time = new Date(seen - (room - 1 - at) * each * 1000);
      this.from.textContent = time.toLocaleTimeString();
      this.peak.textContent = shown(points[at - first], unit);
    }
  }
}

function section(kind) {
  const id = `all-${kind}`;
  const there = document.getElementById(id);
  if (there) return there;
  const added = make("section");
  added.id = id;
  make("h2", added, KINDS[kind][0]);
  const order = Object.keys(KINDS);
  const next = order.slice(order.indexOf(kind) + 1).map(later => document.getElementById(`all-${later}`)).find(e => e);
  board.insertBefore(added, next ?? null);
  return added;
}

// An object with its charts.
class Item {
  constructor({kind, name}) {
    const parent = section(kind);
    this.box = make("details", parent, undefined, "ob");
    this.box.open = parent.querySelectorAll("details").length <= OPEN;
    const head = make("summary", this.box);
    make("h3", head, name || "All proxies");
    this.state = make("span", head, "", "st8");
    this.facts = make("small", head);
    this.charts = make("div", this.box, undefined, "charts");
    this.all = KINDS[kind][1].map(chart => new Chart(this.charts, chart));
    this.box.ontoggle = () => this.draw();
    this.kind = kind;
  }

  take(object, gap) {
    this.object = object;
    for (const chart of this.all) chart.add(object.points?.[chart.figure] ?? [], object.points ? gap : 0);
    this.servers = [];
  }

  draw() {
    const {kind, object} = this, {figures = {}, state = "", keys} = object;
    this.state.textContent = state;
    this.state.className = `st8 ${object.class ?? ""}`;
    this.state.hidden = !state;
    this.facts.textContent = facts(kind, figures);
    if (!this.box.open) return;
    // What an object never has is no chart: requests of a TCP frontend.
    for (const chart of this.all) {
      chart.svg.parentNode.hidden = !!object.points && chart.points.length > 1 && chart.points.every(p => p === null);
      chart.draw();
    }
    this.charts.hidden = !object.points && !this.all[0].points.length;
    table(this, this.servers.length ? ["Server", "State", ...SERVER.map(([, label]) => label)] : [],
      this.servers.map(server => [server.name, [server.state, server.class],
        ...SERVER.map(([column, , unit]) => {
          const value = server.figures[column];
          return typeof value === "string" ? value : shown(value, unit);
        })]));
    if (keys) table(this, keys.length ? ["Key", "Requests", "Denied"] : [],
      keys.map(([key, requests, denied]) => [key, shown(requests, ""), shown(denied, "")]));
  }
}

function facts(kind, figures) {
  const of = (name, unit = "") => shown(figures[name], unit);
  switch (kind) {
    case "process": return `up for ${of("uptime", "s")}, ${of("workers")} workers, ${of("sessions")} of ${of("max")} connections`;
    case "frontend": return `${of("scur")} of ${of("slim")} sessions, ${of("stot")} since the start`;
    case "backend": return `${of("act")} active and ${of("bck")} backup servers, ${of("qcur")} queued`;
    case "store": return `${of("keys")} keys, ${of("memory_used_bytes", "B")}` +
      (figures.memory_max_bytes ? ` of ${of("memory_max_bytes", "B")}` : "") + `, ${of("connected_clients")} clients`;
    case "engine": return `${of("connections")} of ${of("max")} connections` +
      (figures.last_failure ? `, last failure: ${figures.last_failure}` : "");
    default: return `${figures.allows}: ${of("allowed")} allowed, ${of("denied")} denied`;
  }
}

// Shows rows below the charts; a cell is a text, or a text and its class.
function table(item, headings, rows) {
  const shape = `${headings} ${rows.length}`;
  if (item.shape !== shape) {
    item.table?.remove();
    item.shape = shape;
    item.cells = headings.length ? empty(item, headings, rows.length) : [];
  }
  item.cells.forEach((cells, at) => cells.forEach((cell, index) => {
    const [text, classes = ""] = [rows[at][index]].flat();
    cell.textContent = text;
    cell.className = classes;
  }));
}

// Makes an empty table, and returns the cells of its rows.
function empty(item, headings, count) {
  item.table = make("div", item.box, undefined, "scroll");
  item.table.tabIndex = 0;
  item.table.role = "region";
  item.table.ariaLabel = headings[0];
  const body = make("table", item.table, undefined, "rows");
  const head = make("tr", make("thead", body));
  for (const heading of headings) make("th", head, heading).scope = "col";
  const lines = make("tbody", body);
  return Array.from({length: count}, () => {
    const line = make("tr", lines);
    return headings.map((heading, index) => {
      const cell = make(index ? "td" : "th", line);
      if (index) cell.dataset.label = heading; else cell.scope = "row";
      return make("span", cell);
    });
  });
}

function take(data) {
  if (data.started !== started || data.last < last) {
    board.replaceChildren();
    known.clear();
    if (last) { last = 0; started = data.started; return false; }
  }
  const gap = data.last - last;
  ({started, last, each, most} = data);
  seen = new Date();
  const present = new Set();
  // The servers of a backend come before it.
  let servers = [];
  for (const object of data.objects) {
    if (object.kind === "server") servers.push(object);
    if (!KINDS[object.kind]) continue;
    const name = `${object.kind} ${object.name}`;
    present.add(name);
    if (!known.has(name)) known.set(name, new Item(object));
    const item = known.get(name);
    item.take(object, gap);
    if (object.kind === "backend") [item.servers, servers] = [servers, []];
  }
  for (const [name, item] of known) if (!present.has(name)) { item.box.remove(); known.delete(name); }
  for (const part of board.querySelectorAll("section")) if (!part.querySelector("details")) part.remove();
  for (const item of known.values()) item.draw();
  return true;
}

async function poll() {
  let next = 2000;
  try {
    const answer = await fetch(`${source};since=${last}`, {cache: "no-store"});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    if (!take(await answer.json())) next = 0;
    said.hidden = true;
  } catch (error) {
    said.textContent = `No data since ${seen.toLocaleTimeString()} (${error.message}); the next attempt follows.`;
    said.className = "said down";
    said.hidden = false;
  }
  setTimeout(poll, document.hidden ? 10000 : next);
}
poll();
