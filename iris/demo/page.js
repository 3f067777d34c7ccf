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

function showTiles({ books, members, carriers, rows }) {
  const request = books.request;
  const failed = request ? request.expired + request.refused + Object.values(request.lost).reduce((a, b) => a + b, 0) : 0;
  const killed = members.filter((member) => member.killed);
  const counted = Object.values(carriers).reduce((sum, of) => sum + of.flights, 0);
  at("tiles").replaceChildren(
    tile("requests answered", request ? count.format(request.answered) : "–", "64 at a time"),
    tile("requests failed", count.format(failed), killed.length ? "a member was killed meanwhile" : "", failed ? "bad" : ""),
    tile("members killed", String(killed.length), killed.length ? `SIGKILL to process ${killed[0].process}` : "soon: one of three", killed.length ? "bad" : ""),
    tile("flights that Spark has counted", count.format(counted), `of ${count.format(rows)}`));
}

function showMembers({ members }) {
  const most = Math.max(1, ...members.map((member) => member.served));
  at("members").replaceChildren(...members.map((member) => make("div", { class: member.killed ? "row killed" : "row" },
    make("span", { text: `process ${member.process}` }),
    bar(member.served / most),
    make("span", { text: member.killed ? `killed after ${count.format(member.served)}` : count.format(member.served) }))));
  if (!members.length) at("members").append(make("p", { class: "empty", text: "they start" }));
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
    const shown = make("td", { class: kind, "data-label": label });
    shown.append(cell);
    return shown;
  })));
  at(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...lines));
}

const mark = (right) => make("span", right ? { class: "ok", text: "✓" } : { class: "bad", text: "✗" });

function showCarriers({ carriers, end }) {
  at("spark").hidden = !Object.keys(carriers).length;
  const most = Math.max(1, ...Object.values(carriers).map((of) => of.flights));
  const headings = [["carrier", "name"], ["", "bars"], ["flights", "n"], ["delay (min)", "n"]];
  if (end) headings.push(["pandas has the same", "n"]);
  table("carriers", headings, Object.entries(carriers).map(([code, of]) => {
    const cells = [of.name, bar(of.flights / most), count.format(of.flights), delay(of.mean_delay)];
    const pandas = end && end.pandas[code];
    if (end) cells.push(mark(pandas && pandas.flights === of.flights && pandas.mean_delay === of.mean_delay));
    return cells;
  }));
}

function showBooks({ books }) {
  const names = ["sent", "answered", "handed_over", "expired", "refused", "lost", "waiting"];
  const headings = [["pattern", "name"], ...names.map((name) => [name === "waiting" ? "under way" : name.replace("_", " "), "n"]), ["balance", "n"]];
  table("books", headings, Object.entries(books).map(([pattern, of]) => {
    const numbers = names.map((name) => (name === "lost" ? Object.values(of.lost).reduce((a, b) => a + b, 0) : of[name]));
    const balanced = numbers[0] === numbers.slice(1).reduce((a, b) => a + b, 0);
    return [pattern, ...numbers.map((number) => count.format(number)), mark(balanced)];
  }));
}

function showEnd({ end, rows }) {
  if (!end || !at("end").hidden) return;
  const wrong = end.checks.filter((check) => !check.ok).length;
  at("end").hidden = false;
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

async function follow() {
  for (;;) {
    let state;
    try {
      state = await (await fetch("state")).json();
    } catch {
      say("broken", "the demo has ended: iris demo starts another one");
      return;
    }
    at("about").textContent = `${count.format(state.rows)} flights, a dozen processes`;
    for (const show of [showTiles, showMembers, showStages, showCarriers, showBooks, showEnd]) show(state);
    if (state.end) {
      say("live", "over");
      return;
    }
    const running = state.stages.filter((stage) => stage.seconds === null).map((stage) => stage.title);
    say("live", running.join(", ") || "starting");
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

follow();
