"""Draws what happened in one seed as an HTML page: a lane per machine, a mark per fault, and the text of each."""

from __future__ import annotations

import html
import re
from typing import Final

from tests.sim.seeds import Outcome

__all__ = ["timeline"]

WIDTH: Final = 1100
LANE_HEIGHT: Final = 26
LEFT: Final = 90
MACHINES: Final = {
    "10.0.0.1": "ns1",
    "10.0.0.2": "a",
    "10.0.0.3": "b",
    "10.0.0.4": "c",
    "10.0.0.8": "ns2",
    "10.0.0.9": "etcd",
    "10.0.1.1": "producer",
    "10.0.2.1": "consumer-0",
    "10.0.2.2": "consumer-1",
}
LANES: Final = ("all", *MACHINES.values())
_LINE: Final = re.compile(r"\s*(-?\d+\.\d+) (.*)", re.DOTALL)
_NAME: Final = re.compile(r"\b(ns[12]|etcd|producer|consumer-[01]|[abc])(?=[ :.]|$)")


def lanes_of(text: str) -> list[str]:
    """Returns the machines that a line is about, or ``all`` if it names none."""
    found = [name for host, name in MACHINES.items() if re.search(rf"\b{re.escape(host)}\b", text)]
    if not found and not text.startswith(("send of", "transaction")):
        found = list(dict.fromkeys(_NAME.findall(text)))[:2]
    if text.startswith(("send of", "transaction")):
        found = ["producer"]
    return found or ["all"]


def timeline(outcome: Outcome) -> str:
    """Returns the page of one seed. Hover over a mark to read it; the list below has the same lines."""
    lines = [found.groups() for line in outcome.log if (found := _LINE.match(line))]
    last_s = max([outcome.simulated_s, 1.0])
    marks, rows = [], []
    for number, (seconds, text) in enumerate(lines):
        x = LEFT + (WIDTH - LEFT - 20) * float(seconds) / last_s
        shown = html.escape(f"{float(seconds):.3f} s: {text}")
        kind = "refused" if text.startswith(("send of", "transaction")) else "event"
        marks += [
            f'<a href="#l{number}"><circle class="{kind}" cx="{x:.1f}" '
            f'cy="{LANE_HEIGHT * (LANES.index(lane) + 1)}" r="5"><title>{shown}</title></circle></a>'
            for lane in lanes_of(text)
        ]
        rows.append(f'<tr id="l{number}"><td>{float(seconds):.3f}</td><td>{html.escape(text)}</td></tr>')
    lanes = "".join(
        f'<text x="4" y="{LANE_HEIGHT * at + 4}">{lane}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{LANE_HEIGHT * at}" y2="{LANE_HEIGHT * at}"/>'
        for at, lane in enumerate(LANES, 1)
    )
    verdict = html.escape(outcome.violation) or "no violation"
    height = LANE_HEIGHT * (len(LANES) + 1)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>seed {outcome.seed}</title>
<style>body{{font:14px sans-serif;margin:2em}}line{{stroke:#ccc}}text{{font-size:12px}}td{{padding:1px 8px}}
circle.event{{fill:#c33}}circle.refused{{fill:#999}}tr:target{{background:#fe9}}pre{{white-space:pre-wrap}}</style>
<h1>Seed {outcome.seed}</h1><pre>{verdict}</pre>
<p>{last_s:.0f} simulated seconds. {html.escape(", ".join(f"{k} {v:g}" for k, v in outcome.summary.items()))}.</p>
<svg width="{WIDTH}" height="{height}">{lanes}{"".join(marks)}</svg>
<table>{"".join(rows)}</table></html>
"""
