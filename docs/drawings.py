"""The figures of docs/concepts, as SVG: boxes, arrows and words on a grid, without anything from the network."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final, Self

FOLDER: Final = Path(__file__).resolve().parent / "concepts"
INK, PAPER, LINE, SOFT, WARN = "#1f2544", "#ffffff", "#3a4fb0", "#eef1fb", "#b3261e"


class Drawing:
    """An SVG that grows by one shape a call."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts: Final = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
                f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}">'
            ),
            f"<title>{escape(title)}</title>",
            (
                '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>'
            ),
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]

    def box(self, x: int, y: int, width: int, height: int, *lines: str, fill: str = SOFT, dashed: bool = False) -> Self:
        """Draw a box with lines of text in its middle."""
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"{dash}/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width // 2, int(top + 18 * number), line, "middle", bold=number == 0)
        return self

    def frame(self, x: int, y: int, width: int, height: int, name: str) -> Self:
        """Draw a dashed frame with its name in the corner."""
        return self.box(x, y, width, height, fill="none", dashed=True).text(x + 10, y + 20, name, bold=True)

    def text(self, x: int, y: int, line: str, anchor: str = "start", *, bold: bool = False, colour: str = INK) -> Self:
        """Write a line."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(line)}</text>'
        )
        return self

    def arrow(
        self, x1: int, y1: int, x2: int, y2: int, label: str = "", *, both: bool = False, tip: bool = True
    ) -> Self:
        """Draw an arrow with a label over its middle."""
        ends = (' marker-end="url(#tip)"' if tip else "") + (' marker-start="url(#tip)"' if both else "")
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.5"{ends}/>')
        return self.text((x1 + x2) // 2, (y1 + y2) // 2 - 7, label, "middle") if label else self

    def svg(self) -> str:
        """Return the file."""
        return "\n".join([*self._parts, "</svg>", ""])


def overview() -> Drawing:
    """Draw who is in what: realm, sites, nodes, clusters."""
    drawing = Drawing(760, 330, "A realm with two sites; nodes are members of clusters").frame(
        10, 10, 740, 310, "realm acme"
    )
    for x, site in ((30, "site berlin"), (440, "site tokyo")):
        drawing.frame(x, 45, 290, 255, site)
    drawing.box(50, 85, 115, 60, "node", "serves orders").box(185, 85, 115, 60, "node", "serves orders")
    drawing.box(50, 205, 115, 60, "node", "a caller").box(185, 205, 115, 60, "gateway")
    drawing.box(460, 85, 115, 60, "node", "serves stock").box(595, 85, 115, 60, "node", "a caller")
    drawing.box(460, 205, 115, 60, "gateway")
    for ends in ((165, 115, 185, 115), (107, 145, 107, 205), (242, 145, 242, 205), (165, 235, 185, 235)):
        drawing.arrow(*ends, both=True)
    drawing.arrow(140, 205, 210, 145, both=True).arrow(575, 115, 595, 115, both=True)
    drawing.arrow(517, 145, 517, 205, both=True).arrow(610, 145, 560, 205, both=True)
    return drawing.arrow(300, 235, 460, 235, "between sites", both=True)


def way_of_a_request() -> Drawing:
    """Draw the steps of a request, as a sequence."""
    drawing = Drawing(760, 360, "The way of a request from a caller to a member and back")
    columns = {"your code": 95, "node": 280, "member's node": 480, "handler": 670}
    for name, x in columns.items():
        drawing.box(x - 70, 12, 140, 34, name).arrow(x, 46, x, 350, tip=False)
    steps = (
        (95, 280, "request"),
        (280, 480, "encrypted, with deadline"),
        (480, 670, "when it has a place"),
        (670, 480, "return value"),
        (480, 280, "reply"),
        (280, 95, "reply"),
    )
    for number, (start, end, label) in enumerate(steps):
        y = 95 + 45 * number
        side = 1 if end > start else -1
        drawing.arrow(start + 3 * side, y, end - 3 * side, y, label)
    return drawing.text(285, 72, "chooses a member")


def trust() -> Drawing:
    """Draw who signs what."""
    drawing = Drawing(760, 270, "The realm's key signs clusters, a cluster's key signs its nodes")
    drawing.box(280, 15, 200, 52, "key of the realm", "kept offline")
    drawing.box(90, 110, 200, 52, "cluster orders", "certificate and key").box(
        470, 110, 200, 52, "cluster shop", "certificate and key"
    )
    drawing.arrow(330, 67, 200, 110, "").arrow(430, 67, 560, 110, "").text(380, 95, "signs", "middle")
    for x, parent in ((60, 150), (200, 230), (510, 570)):
        drawing.box(x, 205, 120, 48, "node", "key for a while").arrow(parent, 162, x + 60, 205)
    return drawing.arrow(322, 229, 508, 229, "each verifies the other", both=True)


def death() -> Drawing:
    """Draw what others do when a member is killed, and when it falls silent."""
    drawing = Drawing(760, 300, "What happens when a member dies, as a timeline")
    drawing.text(20, 30, "The process is killed: its connections break", bold=True).arrow(40, 70, 730, 70)
    for x, when, what in (
        (75, "0", "killed"),
        (300, "5 ms", "no new work for it"),
        (500, "with that", "idempotent requests move"),
        (680, "0.45 s", "dead"),
    ):
        drawing.arrow(x, 64, x, 76, tip=False).text(x, 56, when, "middle", colour=WARN).text(x, 96, what, "middle")
    drawing.text(20, 155, "The machine falls silent: nothing says so", bold=True).arrow(40, 200, 730, 200)
    for x, when, what in (
        (75, "0", "silent"),
        (250, "0.76 s", "last request to it"),
        (450, "0.96 s", "asked by nobody any more"),
        (680, "3.7 s", "dead"),
    ):
        drawing.arrow(x, 194, x, 206, tip=False).text(x, 186, when, "middle", colour=WARN).text(x, 226, what, "middle")
    return drawing.text(20, 272, "100 members, simulated: medians of python -m benchmarks.membership killed silent")


def drawings() -> dict[Path, str]:
    """Return the figures by file."""
    return {
        FOLDER / f"{name}.svg": drawing().svg()
        for name, drawing in (
            ("overview", overview),
            ("way_of_a_request", way_of_a_request),
            ("trust", trust),
            ("death", death),
        )
    }
