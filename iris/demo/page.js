// The page of the demo: asks for the state twice a second, until the demo is over, and shows it.

const at = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
const delay = (minutes) => (minutes === null ? "–" : (minutes < 0 ? "" : "+") + minutes.toFixed(2));

function make(tag, { text, title, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function bar(share) {
  const fill = make("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: "bar" }, fill);
}

function tile(name, value, more, kind = "") {
  return make("div", { class: "panel tile" },
    make("div", { class: "name", text: name }),
    make("div", { class: `value ${kind}`, text: value }),
    make("div", { class: "more", text: more }));
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function showTiles({ books, members, carriers, rows }) {
  const request = books.request;
  const failed = request ? request.expired + request.refused + sum(Object.values(request.lost)) : 0;
  const killed = members.filter((member) => member.killed);
  const counted = sum(Object.values(carriers).map((of) => of.flights));
  at("tiles").replaceChildren(
    tile("requests answered", request ? count.format(request.answered) : "–", "64 at a time"),
    tile("requests failed", count.format(failed), killed.length ? "a member was killed meanwhile" : "", failed ? "bad" : ""),
    tile("members killed", String(killed.length), killed.length ? `SIGKILL to process ${killed[0].process}` : "soon: one of three", killed.length ? "bad" : ""),
    tile("flights that Spark has counted", count.format(counted), rows ? `of ${count.format(rows)}` : ""));
}

function shownServed({ killed, served }) {
  return killed ? (served === null ? "killed" : `killed after ${count.format(served)}`) : count.format(served);
}

function showMembers({ members }) {
  const most = Math.max(1, ...members.map((member) => member.served));
  at("members").replaceChildren(...members.map((member) => make("div", { class: member.killed ? "row killed" : "row" },
    make("span", { text: `process ${member.process}` }),
    bar(member.served / most),
    make("span", { text: shownServed(member) }))));
  if (!members.length) at("members").append(make("p", { class: "empty", text: "they start" }));
  showRates(members);
}

const SVG = "http://www.w3.org/2000/svg";
const looks = []; // what each member had answered, whenever that was more than before

// Replies a second, a column for each look: the part of who was killed ends, and the others take it over.
function showRates(members) {
  const total = sum(members.map((member) => member.served));
  const now = performance.now() / 1000;
  if (members.length && total !== looks.at(-1)?.total) looks.push({ now, total, served: new Map(members.map((member) => [member.process, member.served])) });
  else if (looks.length === 1) looks[0].now = now; // they have not begun
  const columns = looks.slice(1).map((look, before) => {
    const since = looks[before];
    const rate = (member) => Math.max(0, (look.served.get(member.process) ?? 0) - (since.served.get(member.process) ?? 0)) / (look.now - since.now);
    return { from: since.now, to: look.now, rates: members.map(rate) };
  });
  at("rates").hidden = !columns.length;
  if (!columns.length) return;
  const most = Math.max(...columns.map((column) => sum(column.rates)));
  const [first, last] = [columns[0].from, columns.at(-1).to];
  const x = (time) => (600 * (time - first)) / (last - first);
  at("most").textContent = `at most ${count.format(Math.round(most))}`;
  at("chart").replaceChildren(...columns.flatMap(({ from, to, rates }) => {
    let top = 80;
    return rates.map((rate, turn) => {
      const height = (80 * rate) / most;
      const part = document.createElementNS(SVG, "rect");
      const shape = { x: x(from), y: (top -= height), width: Math.max(0.5, x(to) - x(from) - 1), height, class: members[turn].killed ? "killed" : `turn${turn}` };
      for (const [name, value] of Object.entries(shape)) part.setAttribute(name, value);
      return part;
    });
  }));
}

function showStages({ stages }) {
  at("stages").replaceChildren(...stages.map((stage) => make("div", { class: "row" },
    make("span", { text: stage.title }),
    bar(stage.share),
    make("span", { text: stage.seconds === null ? stage.summary : `${stage.seconds.toFixed(1)} s` }))));
}

function table(id, headings, rows) {
  const head = make("tr", {}, ...headings.map(([text, kind]) => make("th", { text, class: kind })));
  const lines = rows.map((row) => make("tr", {}, ...row.map((cell, column) => {
    const [label, kind] = headings[column];
    const shown = make("td", { class: cell === "0" ? `${kind} zero` : kind, "data-label": label });
    shown.append(cell);
    return shown;
  })));
  at(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...lines));
}

const mark = (right) => make("span", right ? { class: "ok", text: "✓" } : { class: "bad", text: "✗" });

function showCarriers({ carriers, end }) {
  if (!Object.keys(carriers).length) {
    at("carriers").replaceChildren(make("caption", { class: "empty", text: "Spark starts" }));
    return;
  }
  const most = Math.max(1, ...Object.values(carriers).map((of) => of.flights));
  const headings = [["carrier", "name"], ["", "bars"], ["flights", "n"], ["delay (min)", "n"]];
  if (end) headings.push(["pandas has the same", "n"]);
  const ranked = Object.entries(carriers).sort(([, one], [, other]) => other.flights - one.flights);
  table("carriers", headings, ranked.map(([code, of]) => {
    const cells = [of.name, bar(of.flights / most), count.format(of.flights), delay(of.mean_delay)];
    const pandas = end && end.pandas[code];
    if (end) cells.push(mark(pandas && pandas.flights === of.flights && pandas.mean_delay === of.mean_delay));
    return cells;
  }));
}

function showBooks({ books }) {
  const names = ["sent", "answered", "handed_over", "expired", "refused", "lost", "waiting"];
  const headings = [["pattern", "name"], ...names.map((name) => [name === "waiting" ? "under way" : name.replace("_", " "), "n"]), ["balance", "n"]];
  const used = ["request", "broadcast", "survey", "tunnel", "publish"].filter((pattern) => books[pattern]?.sent);
  at("balance").hidden = !used.length;
  table("books", headings, used.map((pattern) => {
    const of = books[pattern];
    const numbers = names.map((name) => (name === "lost" ? sum(Object.values(of.lost)) : of[name]));
    const balanced = numbers[0] === sum(numbers.slice(1));
    return [pattern, ...numbers.map((number) => count.format(number)), mark(balanced)];
  }));
}

function showEnd({ end, rows }) {
  if (!end || !at("end").hidden) return;
  const wrong = end.checks.filter((check) => !check.ok).length;
  at("end").hidden = false;
  at("plan").hidden = true;
  at("end").classList.toggle("bad", wrong > 0);
  at("verdict").textContent = wrong ? `${wrong} of ${end.checks.length} checks failed` : `${count.format(rows)} flights, ${end.checks.length} checks, all right`;
  at("checks").replaceChildren(...end.checks.map((check) => make("li", {}, mark(check.ok), ` ${check.name} `, make("small", { text: check.found }))));
  at("commands").replaceChildren(...end.commands.map((command) => {
    const copy = make("button", { type: "button", class: "quiet", text: "Copy" });
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
    });
    return make("li", {}, make("div", {}, make("code", { text: command }), copy));
  }));
}

function say(kind, text) {
  at("state").className = `pill ${kind}`;
  at("state").textContent = text;
}

function draw(state) {
  for (const show of [showTiles, showMembers, showStages, showCarriers, showBooks, showEnd]) show(state);
}

async function follow() {
  draw({ rows: 0, stages: [], members: [], books: {}, carriers: {}, end: null });
  for (;;) {
    let state;
    try {
      state = await (await fetch("state")).json();
    } catch {
      say("broken", "the demo has ended: iris demo starts another one");
      return;
    }
    draw(state);
    if (state.end) {
      say(state.end.checks.every((check) => check.ok) ? "live" : "broken", "over");
      return;
    }
    const running = state.stages.filter((stage) => stage.seconds === null).map((stage) => stage.title);
    say("live", running.join(", ") || "starting");
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

follow();
