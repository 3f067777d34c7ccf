"""Timeline as a page: one HTML file that needs nothing else.  A lane for each host, time from left to right."""

from __future__ import annotations

import html
from string import Template
from typing import Final

import msgspec

from iris.testing.faults import FaultBase, HostFaultBase, LinkFaultBase, describe
from iris.testing.running import Run

_MOST: Final = 5000
"""Entries that the page has, the last ones."""


def timeline_page(run: Run, error: BaseException, test: str) -> str:
    """Return the page of a run that has failed."""
    entries = list(run.trace.entries)[-_MOST:]
    hosts = sorted({entry.host for entry in entries if entry.host} | _hosts_of(run))
    data: dict[str, object] = {
        "ended": run.ended,
        "hosts": hosts,
        "faults": [
            {"from": fault.at, "to": fault.end, "hosts": _touched(fault), "text": describe(fault)}
            for fault in run.schedule.faults
        ],
        "entries": [[entry.time, entry.kind, entry.host, entry.text] for entry in entries],
    }
    encoded = msgspec.json.encode(data).decode().replace("</", "<\\/")
    return _PAGE.substitute(
        test=html.escape(test or "Simulation"),
        seed=run.schedule.seed,
        error=html.escape(f"{type(error).__name__}: {error}"),
        data=encoded,
    )


def _hosts_of(run: Run) -> set[str]:
    return {host for fault in run.schedule.faults for host in _touched(fault)}


def _touched(fault: FaultBase) -> list[str]:
    if isinstance(fault, HostFaultBase):
        return [fault.host]
    assert isinstance(fault, LinkFaultBase)
    return [*fault.near]


_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$test, seed $seed</title>
<style>
:root { color-scheme: light dark; --ink: #1c2330; --faint: #68707f; --line: #d5d9e0; --back: #fff;
  --fault: #d9480f; --message: #1864ab; --lost: #c92a2a; --note: #2b8a3e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --faint: #98a1b0; --line: #39404d; --back: #14181f;
  --fault: #ff922b; --message: #74c0fc; --lost: #ff8787; --note: #8ce99a } }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--back) }
h1 { font-size: 1.25rem; margin: 0; overflow-wrap: anywhere }
.error { color: var(--lost); font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.controls { display: flex; flex-wrap: wrap; gap: 1rem; align-items: center; margin: 1rem 0; color: var(--faint) }
svg { width: 100%; display: block; border: 1px solid var(--line); border-radius: 6px }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
svg .axis { fill: var(--faint) }
.lane { stroke: var(--line) }
.fault { fill: var(--fault); opacity: .28 }
.mark { fill: var(--message) } .upkeep { fill: var(--faint); opacity: .5 } .note, .host { fill: var(--note) }
.lost, .held { fill: var(--lost) } .failure { fill: var(--lost) }
.end { stroke: var(--lost); stroke-dasharray: 4 3 }
table { border-collapse: collapse; margin-top: 1rem; width: 100%; font: 13px ui-monospace, monospace }
td { padding: .1rem .7rem .1rem 0; vertical-align: top; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
td:first-child { text-align: right; white-space: nowrap; color: var(--faint) }
tr.fault td { color: var(--fault) } tr.failure td, tr.lost td, tr.held td { color: var(--lost) }
tr.note td, tr.host td { color: var(--note) } tr.message td { color: var(--message) }
tr.upkeep td { color: var(--faint) }
</style>
<h1>$test, seed $seed</h1>
<p class="error">$error</p>
<div class="controls">
  <label>Seconds before the failure <select id="span"><option>1<option>5<option selected>30<option>300<option
    value="1e9">all</select></label>
  <label><input type="checkbox" id="upkeep"> membership</label>
  <label><input type="checkbox" id="sent"> frames</label>
</div>
<svg id="lanes" role="img" aria-label="Timeline of hosts, messages and faults"></svg>
<table id="list" aria-label="What happened"></table>
<script>
const data = $data;
const get = id => document.getElementById(id);
const svg = (name, attributes, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
function draw() {
  const end = data.ended, begin = Math.max(0, end - Number(get("span").value)), left = 90, lane = 46;
  const shown = data.entries.filter(([time, kind]) => time >= begin
    && (kind !== "upkeep" || get("upkeep").checked) && (kind !== "sent" || get("sent").checked));
  const lanes = get("lanes"), width = lanes.clientWidth || 1000, height = data.hosts.length * lane + 40;
  lanes.replaceChildren();
  lanes.setAttribute("viewBox", `0 0 $${width} $${height}`);
  lanes.style.height = height + "px";
  const x = time => left + (Math.min(Math.max(time, begin), end) - begin) / ((end - begin) || 1) * (width - left - 20);
  const y = host => data.hosts.indexOf(host) * lane + 30;
  for (const host of data.hosts) {
    lanes.append(svg("line", {class: "lane", x1: left, x2: width - 20, y1: y(host), y2: y(host)}));
    lanes.append(svg("text", {x: 8, y: y(host) + 4}, host));
  }
  for (const fault of data.faults) if (fault.to >= begin && fault.from <= end) for (const host of fault.hosts) {
    const bar = svg("rect", {class: "fault", x: x(fault.from), width: Math.max(3, x(fault.to) - x(fault.from)),
      y: y(host) - 16, height: 32, rx: 3});
    bar.append(svg("title", {}, fault.text));
    lanes.append(bar);
  }
  for (const [time, kind, host, text] of shown) if (host) {
    const up = kind === "note" || kind === "host" || kind === "failure" ? -9 : kind === "sent" ? 9 : 0;
    const mark = svg("circle", {class: kind === "message" ? "mark" : kind, cx: x(time), cy: y(host) + up,
      r: kind === "failure" ? 6 : 3});
    mark.append(svg("title", {}, `$${time.toFixed(3)} s $${text}`));
    lanes.append(mark);
  }
  lanes.append(svg("line", {class: "end", x1: x(end), x2: x(end), y1: 8, y2: height - 22}));
  for (let step = 0; step <= 4; step++) {
    const time = begin + (end - begin) * step / 4;
    lanes.append(svg("text", {class: "axis", x: x(time), y: height - 6, "text-anchor": step === 4 ? "end" : "middle"},
      time.toFixed(end - begin < 10 ? 2 : 0) + " s"));
  }
  const rows = [];
  for (const [time, kind, host, text] of shown) {
    const last = rows.at(-1);
    if (last && last.kind === kind && last.host === host && last.text === text) { last.count++; continue; }
    rows.push({time, kind, host, text, count: 1});
  }
  get("list").replaceChildren(...rows.slice(-500).map(row => {
    const line = document.createElement("tr");
    line.className = row.kind;
    for (const cell of [row.time.toFixed(3), row.host, row.kind, row.text + (row.count > 1 ? ` (x$${row.count})` : "")])
      line.appendChild(document.createElement("td")).textContent = cell;
    return line;
  }));
}
for (const id of ["span", "upkeep", "sent"]) get(id).addEventListener("change", draw);
addEventListener("resize", draw);
draw();
</script>
</html>
""")
