// The page of `iris dash`: it draws what /views sends, and nothing that it is sent is ever read as HTML.

const WINDOW = 300; // seconds of the charts
const STALE = 3.5; // seconds without news
const GAP = 3.5; // seconds between points that no line crosses: nobody looked
const ALERT = 60; // seconds for which a loss is told at the top
const MANY = 40; // dots of one group
const SVG = "http://www.w3.org/2000/svg";

// The token is behind the # of the address, which no server is sent, and stays in this tab: cookies go to all ports.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) history.replaceState(null, "", location.pathname);
const headers = { authorization: `Bearer ${given ?? kept("token") ?? ""}` };
if (given) keep("token", given);
function kept(name) { try { return sessionStorage.getItem(name); } catch { return null; } } // storage is off
function keep(name, value) { try { sessionStorage.setItem(name, value); } catch { /* storage is off */ } }

const $ = (id) => document.getElementById(id);
const state = { about: null, points: [], view: null, before: null, first: null, heard: 0, colours: new Map() };

// -- elements ----------------------------------------------------------------------------------------------

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function colour(name) {
  if (!state.colours.has(name)) state.colours.set(name, `s${state.colours.size % 8}`);
  return state.colours.get(name);
}

// -- numbers, as people read them --------------------------------------------------------------------------

const count = (n) => n.toLocaleString("en-US");
const counted = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const rate = (n) => (n === 0 ? "0" : n < 100 ? n.toFixed(1) : count(Math.round(n)));
function time(t) {
  if (t === null || t === undefined) return "–";
  if (t < 0.001) return `${(t * 1e6).toFixed(0)} µs`;
  if (t < 0.1) return `${(t * 1e3).toFixed(1)} ms`;
  return t < 1 ? `${(t * 1e3).toFixed(0)} ms` : `${t.toFixed(2)} s`;
}
function ago(t) {
  if (t < 90) return `${Math.round(t)} s`;
  if (t < 5400) return `${Math.round(t / 60)} min`;
  return t < 129600 ? `${Math.round(t / 3600)} h` : `${Math.round(t / 86400)} d`;
}
const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
const total = (counts) => sum(Object.values(counts), (n) => n);

// -- tables: rows are kept, so that a button stays under the finger ----------------------------------------

class Table {
  constructor(id, columns, nothing) {
    this.columns = columns;
    this.nothing = nothing;
    this.rows = new Map();
    this.body = h("tbody");
    const heads = columns.map((column) => h("th", { class: [column.n && "n", ["extra", "spark"].includes(column.class) && column.class].filter(Boolean).join(" "), title: column.title ?? null }, column.name));
    this.table = $(id);
    this.table.append(h("thead", {}, h("tr", {}, ...heads)), this.body);
    this.empty = h("p", { class: "empty" }, nothing);
    this.table.after(this.empty);
    this.table.hidden = this.empty.hidden = true; // until a view has come, nothing is known
  }

  show(items, key) {
    const seen = new Set();
    let place = null;
    for (const item of items) {
      const id = key(item);
      seen.add(id);
      let row = this.rows.get(id);
      if (!row) {
        row = h("tr", { "data-key": id }, ...this.columns.map((column) => h("td", { "data-label": column.name })));
        this.rows.set(id, row);
      }
      const next = place ? place.nextSibling : this.body.firstChild;
      if (next !== row) this.body.insertBefore(row, next);
      row.className = item.absent ? "absent" : "";
      this.columns.forEach((column, at) => this.cell(row.children[at], column, item));
      place = row;
    }
    for (const [id, row] of this.rows) if (!seen.has(id)) { row.remove(); this.rows.delete(id); }
    this.table.hidden = !items.length;
    this.empty.hidden = Boolean(items.length);
  }

  cell(cell, column, item) {
    const value = column.value(item);
    const marks = [column.class, column.n && "n", column.mark?.(item), column.n && value === 0 && "zero"];
    cell.className = marks.filter(Boolean).join(" ");
    if (column.draw) return column.draw(cell, item);
    if (typeof value === "number") cell.dataset.value = value;
    else delete cell.dataset.value;
    if (value === null || value === undefined) cell.classList.add("none");
    set(cell, value === null || value === undefined ? "–" : (column.text ?? String)(value, item));
    if (column.title_of) cell.title = column.title_of(item) ?? "";
  }
}

const chip = (cell, text, name) => {
  if (cell.dataset.text === text) return;
  cell.dataset.text = text;
  cell.replaceChildren(h("i", { class: `chip ${colour(name)}` }), text);
};

const clusters = new Table("clusters", [
  { name: "cluster", class: "name", value: (c) => c.cluster, draw: (cell, c) => chip(cell, c.cluster, c.cluster) },
  { name: "members", n: true, value: (c) => c.members, text: count },
  { name: "rate /s", n: true, value: (c) => c.rate, text: rate, title: "Requests served a second" },
  { name: "p50", n: true, value: (c) => c.p50, text: time },
  { name: "p99", n: true, value: (c) => c.p99, text: time },
  { name: "running", n: true, value: (c) => c.running, text: count },
  { name: "queue", n: true, value: (c) => c.queued, text: count, mark: (c) => c.queued > 0 && "warm" },
  { name: "failed", n: true, value: (c) => c.failed, text: count, mark: (c) => grew("clusters", c, "cluster", "failed") && "hot" },
  { name: "refused", n: true, value: (c) => c.refused, text: count, mark: (c) => grew("clusters", c, "cluster", "refused") && "hot" },
  { name: "expired", n: true, value: (c) => c.expired, text: count, mark: (c) => grew("clusters", c, "cluster", "expired") && "hot" },
  { name: "version", class: "extra", value: (c) => c.versions.join(" "), mark: (c) => c.versions.length > 1 && "warm" },
  { name: "last minutes", class: "spark", value: () => "", draw: (cell, c) => spark(cell, (p) => p.clusters[c.cluster]?.[0], colour(c.cluster)) },
], "No cluster has a member.");

const REASONS = {
  left: "it said goodbye",
  refused: "nobody listens there any more",
  silent: "it answered nobody",
  expelled: "its credential holds no more",
};
const status = (n) => {
  if (n.gone) return n.reason === "left" ? "left" : n.reason === "expelled" ? "expelled" : "lost";
  if (n.absent) return "silent";
  if (n.counts.some((one) => one.draining)) return "draining";
  return n.status;
};
const told = (n) => {
  if (n.gone) return `${status(n)}: ${REASONS[n.reason] ?? n.reason}, ${ago(n.seconds)} ago`;
  return n.absent ? `silent: ${n.reason}` : status(n);
};
const short = (n) => (n.gone ? `${status(n)} ${ago(n.seconds)} ago${status(n) === "lost" ? ` (${n.reason})` : ""}` : status(n));
const live = (of) => (n) => (n.absent ? null : of(n));

const nodes = new Table("nodes", [
  { name: "status", class: "status", value: short, mark: status, title_of: told },
  { name: "name", class: "name", value: (n) => n.speaks_for, draw: (cell, n) => chip(cell, n.speaks_for, groupOf(n)) },
  { name: "node", class: "mono", value: (n) => n.node.slice(0, 8) },
  { name: "host", class: "host", value: (n) => n.host, text: (host, n) => `${host} · ${n.process}` },
  { name: "site", class: "extra", value: (n) => n.site || null },
  { name: "serves", class: "wide", value: (n) => n.serves.join(" ") || null },
  { name: "served /s", n: true, value: live((n) => n.served_rate), text: rate },
  { name: "asked /s", n: true, value: live((n) => n.asked_rate), text: rate },
  { name: "events /s", n: true, class: "extra", value: live((n) => n.published_rate), text: rate },
  { name: "queue", n: true, value: live((n) => sum(n.counts, (one) => one.queued)), text: count, mark: (n) => !n.absent && sum(n.counts, (one) => one.queued) > 0 && "warm" },
  { name: "lost", n: true, value: live((n) => total(n.lost)), text: count, mark: (n) => !n.absent && lostMore(n) && "hot" },
  { name: "links", n: true, class: "extra", value: live((n) => n.links), text: count },
  { name: "up", n: true, value: live((n) => n.uptime), text: ago },
  { name: "version", class: "extra", value: live((n) => n.version) },
  { name: "", class: "actions", value: () => "", draw: buttons },
], "No node is seen.");

const losses = new Table("losses", [
  { name: "what", class: "name", value: (l) => l.what },
  { name: "reason", class: "wide", value: (l) => l.reason },
  { name: "count", n: true, value: (l) => l.count, text: count },
  { name: "since you look", n: true, value: (l) => l.more, text: (n) => (n ? `+${count(n)}` : "0"), mark: (l) => l.more > 0 && l.what !== "without subscriber" && (l.what === "refused" ? "warm" : "hot") },
  { name: "where", value: (l) => l.where.join(" ") },
], "Nothing was lost, refused or without subscriber.");

const carriers = new Table("carriers", [
  { name: "what", class: "name", value: (c) => c.what },
  { name: "node", class: "mono", value: (c) => c.node.slice(0, 8) },
  { name: "for", class: "wide", value: (c) => c.for },
  { name: "behind", n: true, title: "Events that readers have still to read, and that wait for the disk", value: (c) => c.lag, text: count, mark: (c) => c.lag > 0 && "warm" },
  { name: "gaps", n: true, value: (c) => c.gaps, text: count, mark: (c) => c.gaps > 0 && "hot" },
  { name: "passed /s", n: true, value: (c) => c.rate, text: rate },
  { name: "refused", n: true, value: (c) => c.refused, text: count },
], "There is no bridge and no gateway.");

// -- what changed since the view before --------------------------------------------------------------------

const earlier = (list, key, value) => state.before?.[list].find((one) => one[key] === value);
const grew = (list, item, key, field) => {
  const before = earlier(list, key, item[key]);
  return before !== undefined && item[field] > before[field];
};
const lostMore = (n) => {
  const before = earlier("nodes", "node", n.node);
  return before !== undefined && total(n.lost) > total(before.lost);
};

// -- charts ------------------------------------------------------------------------------------------------

function extent() {
  const end = state.points.at(-1)?.t ?? 0;
  const begin = Math.max(end - WINDOW, Math.min(state.points[0]?.t ?? end, end - 60));
  return [begin, end];
}

function nice(most) {
  if (!(most > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(most));
  return step * [1, 2, 5, 10].find((times) => times * step >= most * 0.999);
}

/** The stretches without a gap, each a list of places. */
function stretches(points, value, x, y) {
  const found = [];
  let last = null;
  for (const point of points) {
    const v = value(point);
    if (v === null || v === undefined) { last = null; continue; }
    if (last === null || point.t - last >= GAP) found.push([]);
    found.at(-1).push([x(point.t).toFixed(1), y(v).toFixed(1)]);
    last = point.t;
  }
  return found;
}
const joined = (places) => `M${places.map((place) => place.join(" ")).join("L")}`;
const line = (...all) => stretches(...all).map(joined).join("");
const area = (ground, ...all) => stretches(...all).map((places) => `${joined([...places, [places.at(-1)[0], ground], [places[0][0], ground]])}Z`).join("");

function spark(cell, value, mark) {
  const width = 120, height = 22;
  const [begin, end] = extent();
  const points = state.points.filter((point) => point.t >= begin);
  const most = Math.max(1e-9, ...points.map((point) => value(point) ?? 0));
  const path = line(points, value, (t) => ((t - begin) / (end - begin || 1)) * width, (v) => height - 2 - (v / most) * (height - 4));
  let drawn = cell.firstChild;
  if (!drawn) {
    drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", "aria-hidden": "true", class: mark }, s("path", { class: "line", "vector-effect": "non-scaling-stroke" }));
    cell.append(drawn);
  }
  drawn.firstChild.setAttribute("d", path);
}

/** From 0 to a round number, with the places of lines; or by powers of ten, where the small must not vanish. */
function linear(values) {
  const most = nice(Math.max(0, ...values));
  return { part: (v) => v / most, lines: [0, most / 2, most] };
}
function logarithmic(values) {
  const seen = values.filter((v) => v > 0);
  const low = Math.floor(Math.log10(Math.min(...seen, 1))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...seen, 1e-3))));
  return { part: (v) => (Math.log10(Math.max(v, 10 ** low)) - low) / (high - low), lines: Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at)) };
}

class Chart {
  constructor(id, title, unit, scale, text, series) {
    Object.assign(this, { scale, text, series, hover: null });
    this.figure = $(id);
    this.svg = s("svg", { role: "img", "aria-label": title, height: 170 });
    this.legend = h("div", { class: "legend" });
    this.when = h("small", {}, unit);
    this.unit = unit;
    this.figure.append(h("figcaption", {}, title, this.when), this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => { this.hover = event.offsetX; this.show(); });
    this.svg.addEventListener("pointerleave", () => { this.hover = null; this.show(); });
  }

  show() {
    const width = this.svg.clientWidth || 400, height = 170, left = 46, bottom = 20, top = 12, right = 4;
    const [begin, end] = extent();
    const points = state.points.filter((point) => point.t >= begin);
    const series = this.series(points);
    const scale = this.scale(series.flatMap((one) => points.map((point) => one.value(point) ?? 0)));
    const x = (t) => left + ((t - begin) / (end - begin || 1)) * (width - left - right);
    const y = (v) => height - bottom - scale.part(v) * (height - bottom - top);
    const drawn = [];
    for (const v of scale.lines) {
      drawn.push(s("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      drawn.push(s("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, this.text(v)));
    }
    const span = end - begin;
    drawn.push(s("text", { x: left, y: height - 3 }, `${ago(span)} ago`));
    drawn.push(s("text", { x: width - right, y: height - 3, "text-anchor": "end" }, "now"));
    for (const one of series) {
      const path = line(points, one.value, x, y);
      if (!one.thin && path && series.length === 1) {
        drawn.push(s("path", { class: `area ${one.colour}`, d: area(y(0), points, one.value, x, y) }));
      }
      drawn.push(s("path", { class: `line ${one.colour} ${one.thin ? "thin" : ""}`, d: path }));
    }
    let at = points.at(-1);
    if (this.hover !== null && points.length) {
      at = points.reduce((best, point) => (Math.abs(x(point.t) - this.hover) < Math.abs(x(best.t) - this.hover) ? point : best));
      drawn.push(s("line", { class: "cross", x1: x(at.t), x2: x(at.t), y1: top, y2: height - bottom }));
    }
    set(this.when, this.hover !== null && at ? `${ago(end - at.t)} ago` : this.unit);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...drawn);
    this.legend.replaceChildren(...series.filter((one) => !one.thin).map((one) =>
      h("span", {}, h("i", { class: one.colour }), one.name, h("b", {}, at ? one.shown(at) : "–"))));
  }
}

const axis = (v) => v.toLocaleString("en-US", { maximumFractionDigits: 1 });
const unit = (t) => (t >= 1 ? `${t} s` : t >= 0.001 ? `${Math.round(t * 1e3)} ms` : `${Math.round(t * 1e6)} µs`);

const MOST_LINES = 8;
function busiest(points, at) {
  const most = new Map();
  for (const point of points) {
    for (const [name, values] of Object.entries(point.clusters)) most.set(name, Math.max(most.get(name) ?? 0, values[at] ?? 0));
  }
  return [...most].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, MOST_LINES).map(([name]) => name).sort();
}

const charts = [
  new Chart("rates", "Requests served", "per second", linear, axis, (points) => busiest(points, 0).map((name) => ({
    name, colour: colour(name), value: (p) => p.clusters[name]?.[0], shown: (p) => rate(p.clusters[name]?.[0] ?? 0),
  }))),
  new Chart("latency", "Latency", "p99, and p50 dashed", logarithmic, unit, (points) => busiest(points, 2).flatMap((name) => [
    { name, colour: colour(name), thin: true, value: (p) => p.clusters[name]?.[1] },
    { name, colour: colour(name), value: (p) => p.clusters[name]?.[2], shown: (p) => time(p.clusters[name]?.[2]) },
  ])),
  new Chart("queues", "Queued", "requests that wait", linear, axis, (points) => busiest(points, 3).map((name) => ({
    name, colour: colour(name), value: (p) => p.clusters[name]?.[3], shown: (p) => count(p.clusters[name]?.[3] ?? 0),
  }))),
];

// -- tiles -------------------------------------------------------------------------------------------------

const tiles = ["nodes", "requests", "slowest p99", "queued", "events", "lost"].map((name) => {
  const parts = { value: h("div", { class: "value" }, "–"), more: h("div", { class: "more" }) };
  $("tiles").append(h("div", { class: "panel tile", "data-tile": name }, h("div", { class: "name" }, name), parts.value, parts.more));
  return parts;
});

function showTiles(view) {
  const slowest = view.clusters.reduce((worst, c) => ((c.p99 ?? -1) > (worst?.p99 ?? -1) ? c : worst), null);
  const fullest = view.clusters.reduce((worst, c) => (c.queued > (worst?.queued ?? 0) ? c : worst), null);
  const lost = sum(view.nodes, (n) => total(n.lost));
  const more = lost - sum(state.before?.nodes ?? view.nodes, (n) => total(n.lost));
  const gone = view.gone.filter((n) => n.reason !== "left").length;
  const absent = [view.silent.length && `${view.silent.length} silent`, gone && `${gone} lost`].filter(Boolean).join(", ");
  const shown = [
    [count(view.nodes.length), absent || counted(view.clusters.length, "cluster"), gone ? "bad" : view.silent.length ? "warn" : ""],
    [`${rate(sum(view.clusters, (c) => c.rate))}/s`, `${rate(sum(view.nodes, (n) => n.asked_rate))}/s asked`, ""],
    [time(slowest?.p99), slowest?.p99 !== null && slowest ? slowest.cluster : "nothing served", ""],
    [count(sum(view.clusters, (c) => c.queued)), fullest ? `${fullest.cluster} most` : `${count(sum(view.clusters, (c) => c.running))} running`, fullest ? "warn" : ""],
    [`${rate(sum(view.nodes, (n) => n.published_rate))}/s`, `${count(sum(view.nodes, (n) => n.delivered))} delivered`, ""],
    [count(lost), more > 0 ? `+${count(more)} just now` : "none just now", more > 0 ? "bad" : ""],
  ];
  shown.forEach(([value, text, mark], at) => {
    set(tiles[at].value, value);
    set(tiles[at].more, text);
    tiles[at].more.className = `more ${mark}`;
  });
}

// -- map of sites and calls --------------------------------------------------------------------------------

const groupOf = (n) => n.serves[0] ?? n.speaks_for;

function model(view, everybody) {
  const groups = new Map();
  for (const node of everybody) {
    if (node.gone && (node.reason === "left" || node.seconds > 2 * ALERT)) continue;
    const name = groupOf(node);
    if (!groups.has(name)) groups.set(name, { name, nodes: [], gateway: false, calls: new Map() });
    const group = groups.get(name);
    group.nodes.push(node);
    group.gateway ||= Boolean(node.gateway);
  }
  const owners = new Map();
  for (const group of groups.values()) for (const node of group.nodes) for (const cluster of node.serves) owners.set(cluster, group.name);
  for (const node of view.nodes) {
    for (const one of node.latency) {
      const to = owners.get(one.cluster);
      if (one.served || !one.count || !to) continue;
      const calls = groups.get(groupOf(node)).calls;
      const held = calls.get(to) ?? { rate: 0, p99: 0 };
      calls.set(to, { rate: held.rate + (node.seconds ? one.count / node.seconds : 0), p99: Math.max(held.p99, one.p99 ?? 0) });
    }
  }
  return groups;
}

/** Callers stand before those whom they call; who neither calls nor is called comes last, and gateways first of these. */
function layers(groups) {
  const called = new Set([...groups.values()].flatMap((group) => [...group.calls.keys()]));
  const idle = [...groups.values()].filter((group) => !group.calls.size && !called.has(group.name));
  idle.sort((a, b) => b.gateway - a.gateway || (a.name < b.name ? -1 : 1));
  const depth = new Map();
  const visit = (name, path) => {
    if (path.has(name)) return -1;
    if (depth.has(name)) return depth.get(name);
    path.add(name);
    let deepest = 0;
    for (const other of groups.values()) if (other.name !== name && other.calls.has(name)) deepest = Math.max(deepest, visit(other.name, path) + 1);
    path.delete(name);
    depth.set(name, Math.min(deepest, 4));
    return depth.get(name);
  };
  const found = [];
  for (const name of [...groups.keys()].sort()) if (!idle.includes(groups.get(name))) (found[visit(name, new Set())] ??= []).push(groups.get(name));
  const full = [...found, idle].filter((layer) => layer?.length);
  return full.flatMap((layer) => Array.from({ length: Math.ceil(layer.length / 6) }, (_, at) => layer.slice(at * 6, at * 6 + 6)));
}

function showMap(view, everybody) {
  const groups = model(view, everybody);
  const upright = $("map").clientWidth < 620;
  const [w, tall, gap, far] = upright ? [106, 54, 10, 46] : [150, 58, 16, $("map").clientWidth < 1000 ? 74 : 96];
  const columns = layers(groups);
  const sites = new Map(Object.entries(view.remote_clusters));
  const gateways = view.nodes.filter((node) => node.gateway);
  for (const node of gateways) {
    for (const site of [...Object.values(node.gateway.neighbours), ...node.gateway.sites]) if (!sites.has(site)) sites.set(site, []);
  }
  if (!columns.length && !sites.size) return $("map").replaceChildren(h("p", { class: "empty" }, "No node is seen."));
  const across = upright ? 3 : 1; // groups beside each other in a row of the upright map
  const placed = new Map();
  let along = 24, broad = 0;
  for (const column of columns) {
    column.forEach((group, at) => {
      const [x, y] = upright ? [14 + (at % across) * (w + gap), along + 22 + Math.floor(at / across) * (tall + gap)] : [along, 44 + at * (tall + gap)];
      placed.set(group.name, { group, x, y });
      broad = Math.max(broad, upright ? x + w : y + tall);
    });
    along += upright ? Math.ceil(column.length / across) * (tall + gap) + far - gap : w + far;
  }
  const end = Math.max(24, along - far) + 24;
  const frame = upright ? { x: 0, y: 8, width: Math.max(broad + 14, across * (w + gap) - gap + 28), height: end } : { x: 4, y: 8, width: end, height: broad + 12 };
  const drawn = [s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0L8 4L0 8Z" })))];
  drawn.push(s("rect", { class: "frame", rx: 10, ...frame }), s("text", { class: "frame-name", x: frame.x + 12, y: frame.y + 20 }, state.about.site ? `site ${state.about.site}` : "this site"));
  let width = frame.x + frame.width + 4, height = frame.y + frame.height + 8;

  const names = [...sites.keys()].sort();
  names.forEach((site, at) => {
    const [x, y] = upright ? [0, height + 40 + at * (tall + 24)] : [frame.x + frame.width + 110, 8 + at * (tall + 34)];
    const exports = sites.get(site);
    drawn.push(s("rect", { class: "frame", rx: 10, x, y, width: 200, height: tall + 12 }), s("text", { class: "frame-name", x: x + 12, y: y + 20 }, `site ${cut(site, 24)}`));
    drawn.push(s("text", { x: x + 12, y: y + 40 }, exports.length ? cut(exports.slice(0, 3).join(" "), 28) : "exports nothing to here"));
    if (exports.length > 3) drawn.push(s("text", { x: x + 12, y: y + 58 }, `and ${exports.length - 3} more`));
    for (const node of gateways) {
      const linked = Object.values(node.gateway.neighbours).includes(site);
      if (!linked && !node.gateway.sites.includes(site)) continue;
      const from = placed.get(groupOf(node));
      const passed = perSecond(node, (n) => n.gateway.carried);
      const [x1, y1, x2, y2] = upright ? [from.x + w / 2, from.y + tall, x + 100, y] : [from.x + w, from.y + tall / 2, x, y + tall / 2];
      const path = upright ? `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}` : `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`;
      drawn.push(s("path", { class: `cable ${linked ? "" : "idle"}`, d: path }));
      drawn.push(s("text", { class: "tag", x: upright ? x2 + 8 : x2 - 8, y: upright ? y2 - 8 : y2 - 8, "text-anchor": upright ? "start" : "end" }, `${rate(passed)} frames/s`));
    }
    width = Math.max(width, x + 204);
    height = Math.max(height, y + tall + 20);
  });

  const tags = [];
  for (const { group, x, y } of placed.values()) {
    for (const [to, call] of group.calls) {
      const other = placed.get(to);
      if (!other || other.group === group) continue;
      const [x1, y1, x2, y2] = upright ? [x + w / 2, y + tall, other.x + w / 2, other.y - 2] : [x + w, y + tall / 2, other.x - 2, other.y + tall / 2];
      const bend = upright ? Math.max(26, Math.abs(y2 - y1) / 2) : Math.max(40, Math.abs(x2 - x1) / 2);
      const path = upright ? `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
      drawn.push(s("path", { class: "call", d: path, "stroke-width": 1 + Math.min(3, Math.log10(1 + call.rate)), "marker-end": "url(#tip)" }));
      tags.push(s("text", { class: "tag", x: x1 * 0.35 + x2 * 0.65, y: y1 * 0.35 + y2 * 0.65 + (upright ? 4 : -3), "text-anchor": "middle" }, `${rate(call.rate)}/s`,
        s("title", {}, `${group.name} asks ${to}: ${rate(call.rate)} a second, p99 ${time(call.p99)}`)));
    }
  }
  for (const { group, x, y } of placed.values()) {
    drawn.push(s("rect", { class: `group ${group.gateway ? "gateway" : ""}`, x, y, width: w, height: tall, rx: 8 }));
    drawn.push(s("rect", { class: colour(group.name), x, y: y + 10, width: 4, height: tall - 20, rx: 2, fill: "currentColor" }));
    drawn.push(s("text", { class: "title", x: x + 14, y: y + 22 }, cut(group.name, upright ? 12 : 18), s("title", {}, group.name)));
    const shown = group.nodes.slice(0, MANY);
    const step = Math.min(15, (w - 34) / Math.max(1, shown.length));
    shown.forEach((node, at) => drawn.push(s("circle", { class: status(node), cx: x + 20 + at * step, cy: y + 40, r: Math.min(5, step / 2.4) },
      s("title", {}, `${node.node.slice(0, 8)} ${node.host ?? ""}: ${told(node)}`))));
  }
  drawn.push(...tags);
  const map = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Sites, clusters and calls", width, height });
  map.append(...drawn);
  map.style.maxWidth = `${width}px`;
  map.style.height = "auto";
  map.style.margin = "0 auto";
  $("map").replaceChildren(map);
}

function perSecond(node, of) {
  const before = earlier("nodes", "node", node.node);
  return before && node.seconds ? Math.max(0, of(node) - of(before)) / node.seconds : 0;
}

// -- losses, bridges, gateways -----------------------------------------------------------------------------

function gathered(view) {
  const found = new Map();
  const add = (what, reason, n, node) => {
    if (!n) return;
    const key = `${what}\n${reason}`;
    const held = found.get(key) ?? { key, what, reason, count: 0, where: new Set() };
    held.count += n;
    held.where.add(node.speaks_for);
    found.set(key, held);
  };
  for (const node of view.nodes) {
    for (const [reason, n] of Object.entries(node.lost)) add("lost", reason, n, node);
    for (const [reason, n] of Object.entries(node.refused)) add("refused", reason, n, node);
    add("without subscriber", "events that nobody subscribes to", node.without_subscriber, node);
    if (node.bridge) {
      add("gap", "events missing from the log of a bridge", node.bridge.missed, node);
      add("unstored", "events that a bridge could not judge, or of another's shard", node.bridge.unstored, node);
    }
  }
  return found;
}

function showLosses(view) {
  const found = gathered(view);
  state.first ??= found;
  const order = ["lost", "gap", "unstored", "refused", "without subscriber"];
  const rows = [...found.values()].map((one) => ({ ...one, more: Math.max(0, one.count - (state.first.get(one.key)?.count ?? 0)), where: [...one.where].sort() }));
  rows.sort((a, b) => order.indexOf(a.what) - order.indexOf(b.what) || b.count - a.count || (a.reason < b.reason ? -1 : 1));
  losses.show(rows, (row) => row.key);
}

function showCarriers(view) {
  const rows = [];
  for (const node of view.nodes) {
    if (node.bridge) {
      const name = node.serves[0] ?? "bridge", groups = Object.entries(node.bridge.lags);
      const stored = perSecond(node, (n) => n.bridge?.stored ?? 0);
      rows.push({ what: name, node: node.node, for: "the disk", lag: node.bridge.waiting, gaps: node.bridge.missed, rate: stored, refused: node.bridge.unstored });
      for (const [group, lag] of groups) rows.push({ what: name, node: node.node, for: `readers ${group}`, lag, gaps: null, rate: null, refused: null });
    }
    if (node.gateway) {
      const to = Object.values(node.gateway.neighbours), reach = node.gateway.sites.join(" ");
      rows.push({ what: "gateway", node: node.node, for: reach ? `sites ${reach}${to.length ? "" : " (no neighbour is linked)"}` : "no site is reached", lag: null, gaps: null, rate: perSecond(node, (n) => n.gateway?.carried ?? 0), refused: node.gateway.refused });
    }
  }
  carriers.show(rows, (row) => `${row.node} ${row.for}`);
}

// -- what an operator does ---------------------------------------------------------------------------------

function buttons(cell, node) {
  const may = state.about.allowed;
  const wanted = [];
  if (!node.absent && may.includes("drain")) for (const one of node.counts) wanted.push([one.draining ? "Work again" : "Drain", one.cluster]);
  if (!node.gone && may.includes("revoke")) wanted.push(["Revoke", ""]);
  const key = JSON.stringify(wanted);
  if (cell.dataset.buttons === key) return;
  cell.dataset.buttons = key;
  cell.replaceChildren(...wanted.map(([what, cluster]) => h("button", {
    type: "button",
    onclick: () => (what === "Revoke" ? askRevoke(node) : askDrain(node, cluster, what === "Drain")),
  }, node.counts?.length > 1 && cluster ? `${what} ${cluster}` : what)));
}

function ask(title, body, verb, act) {
  const dialog = $("ask"), [close, go] = dialog.querySelectorAll("button"), answer = dialog.querySelector(".answer");
  set(dialog.querySelector("h2"), title);
  dialog.querySelector(".body").replaceChildren(...body);
  set(go, verb);
  set(answer, "");
  go.disabled = false;
  close.onclick = () => dialog.close();
  go.onclick = async () => {
    go.disabled = true;
    try {
      set(answer, await act());
      answer.className = "answer good";
    } catch (error) {
      set(answer, String(error.message ?? error));
      answer.className = "answer";
      go.disabled = false;
    }
  };
  dialog.showModal();
}

async function post(path, body) {
  const response = await fetch(path, { method: "POST", body, headers });
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  return response;
}

function askDrain(node, cluster, draining) {
  const says = draining
    ? `This member of ${cluster} then takes no new work: callers turn to others, and what runs is finished. It goes on running until it is stopped or works again.`
    : `This member of ${cluster} then takes new work again.`;
  const who = `${node.node.slice(0, 8)} on ${node.host}, process ${node.process}`;
  ask(draining ? `Drain a member of ${cluster}?` : `Have it work again?`, [h("p", {}, who), h("p", {}, says)], draining ? "Drain" : "Work again", async () => {
    await post("drain", JSON.stringify({ node: node.node, cluster, draining }));
    return draining ? "It takes no new work." : "It takes new work.";
  });
}

function askRevoke(node) {
  const file = h("input", { type: "file", "aria-label": "revocation list" });
  ask(`Revoke ${node.speaks_for}?`, [
    h("p", {}, "The realm's key stays where it is. Run one of these there: the first expels this node, the second all credentials of the cluster."),
    h("code", {}, `iris keys revoke REALM --node ${node.node} --out revoked`),
    h("code", {}, `iris keys revoke REALM --cluster ${node.speaks_for} --out revoked`),
    h("p", {}, "Then choose the list that it has written. It is in force in the whole realm at once, and cannot be taken back."),
    file,
  ], "Put in force", async () => {
    if (!file.files.length) throw new Error("choose the list first");
    const { newer, number } = await (await post("revoke", file.files[0])).json();
    return newer ? `List ${number} is in force.` : `List ${number} was in force already, and stays.`;
  });
}

// -- the whole ---------------------------------------------------------------------------------------------

function showAlerts(view, trouble) {
  const found = [];
  if (trouble) found.push(["bad", "The realm is not seen: ", trouble]);
  for (const node of view.gone) {
    if (node.reason === "left" || node.seconds >= ALERT) continue;
    const who = `${node.speaks_for} ${node.node.slice(0, 8)}${node.host ? ` on ${node.host}` : ""}`;
    const how = node.reason === "expelled" ? "expelled" : "lost";
    found.push(["bad", `${who} was ${how}: `, `${REASONS[node.reason] ?? node.reason}, ${ago(node.seconds)} ago`]);
  }
  if (!trouble) for (const node of view.silent) found.push(["warn", `${node.speaks_for} ${node.node.slice(0, 8)} does not answer: `, node.reason]);
  for (const node of view.nodes) {
    const why = view.doubted[node.node];
    if (why) found.push(["warn", `${node.speaks_for} ${node.node.slice(0, 8)} is doubted: `, why]);
  }
  const more = found.length - 4;
  if (more > 0) found.splice(4, more, ["bad", `and ${more} more: `, "see the nodes below"]);
  $("alerts").replaceChildren(...found.map(([mark, head, text]) => h("p", { class: mark }, h("b", {}, head), h("span", {}, text))));
  document.title = `${found.length ? "(!) " : ""}Iris: ${counted(view.nodes.length, "node")}`;
}

function show({ view, point, trouble, revocations }) {
  state.before = state.view;
  state.view = view;
  state.points.push(point);
  if (state.points.length > WINDOW) state.points.shift();
  [...view.clusters.map((c) => c.cluster)].sort().forEach(colour);
  const rank = { silent: 0, lost: 1, expelled: 1, suspected: 2, draining: 3, alive: 4, left: 5 };
  const everybody = [
    ...view.silent.map((n) => ({ ...n, absent: true, serves: n.clusters })),
    ...view.gone.map((n) => ({ ...n, absent: true, gone: true, serves: n.clusters })),
    ...view.nodes.map((n) => ({ ...n, counts: n.clusters, serves: n.clusters.map((one) => one.cluster) })),
  ];
  const enriched = { ...view, nodes: everybody.filter((n) => !n.absent) };
  everybody.sort((a, b) => rank[status(a)] - rank[status(b)] || (a.speaks_for < b.speaks_for ? -1 : a.speaks_for > b.speaks_for ? 1 : a.node < b.node ? -1 : 1));
  showAlerts(view, trouble);
  showTiles(enriched);
  for (const chart of charts) chart.show();
  clusters.show(view.clusters, (c) => c.cluster);
  nodes.show(everybody, (n) => n.node);
  showMap(enriched, everybody);
  showLosses(enriched);
  showCarriers(enriched);
  set($("lists"), revocations ? `Revocation list ${revocations} is in force.` : "");
}

function tell(mark, text) {
  $("state").className = `pill ${mark}`;
  set($("state"), text);
}

const received = {
  history(about) {
    state.heard = performance.now();
    if (state.about && state.about.node !== about.node) Object.assign(state, { view: null, before: null, first: null });
    state.about = about;
    state.points = about.points;
    set($("about"), `realm ${about.realm.slice(0, 8)}${about.site ? ` · ${about.site}` : ""} · ${about.allowed.length ? `may ${about.allowed.join(" and ")}` : "read-only"}`);
  },
  view(view) {
    state.heard = performance.now();
    show(view);
    tell("live", "live");
  },
};

/** Read server-sent events: EventSource could not show the token. */
async function follow(body) {
  let text = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const messages = (text + value).split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const [, kind, data] = message.match(/^event: (.*)\ndata: (.*)$/);
      try { received[kind](JSON.parse(data)); } catch (error) { reportError(error); }
    }
  }
}

let source = null;
async function connect() {
  source?.abort();
  const own = (source = new AbortController());
  let status = 0;
  try {
    const response = await fetch("views", { headers, signal: own.signal });
    status = response.status;
    if (response.ok) await follow(response.body);
  } catch { /* the connection has ended */ }
  if (own !== source) return;
  if (status === 401) return tell("broken", "iris dash was restarted: open the address that it has printed now");
  if (status === 503) tell("broken", "iris dash has as many pages open as it may: close one");
  else tell("broken", "iris dash does not answer: it was stopped or cannot be reached");
  setTimeout(() => { if (own === source && !document.hidden) connect(); }, 1000);
}

setInterval(() => {
  const quiet = (performance.now() - state.heard) / 1000;
  if ($("state").classList.contains("live") && quiet > STALE) tell("waiting", "no news");
  if ($("state").textContent.startsWith("no news")) set($("state"), `no news for ${Math.round(quiet)} s`);
}, 500);

// A page that nobody sees needs no views, and browsers have six connections to a server.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  source?.abort();
  source = null;
});
addEventListener("resize", () => { if (state.view) { for (const chart of charts) chart.show(); } });

const themes = ["auto", "dark", "light"];
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  set($("theme"), name);
}
let chosen = "auto";
try { chosen = localStorage.getItem("theme") ?? "auto"; } catch { /* storage is off */ }
theme(themes.includes(chosen) ? chosen : "auto");
$("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf($("theme").textContent) + 1) % themes.length];
  theme(next);
  try { localStorage.setItem("theme", next); } catch { /* storage is off */ }
});

connect();
