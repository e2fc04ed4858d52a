"""Runs seeds of the simulation, or replays one.

PYTHONHASHSEED=0 python -m tests.sim --seed 17 --verbose
PYTHONHASHSEED=0 python -m tests.sim --seed 17 --html seed-17.html
PYTHONHASHSEED=0 python -m tests.sim --from 0 --count 100
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

from tests.sim.plants import PLANTS
from tests.sim.seeds import outcomes
from tests.sim.timeline import timeline


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument(
        "--plant",
        choices=sorted(PLANTS),
        help="with a defect that must be found, and the seeds and faults that can show it",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--html", metavar="FILE", help="draw the timeline of the last seed")
    parser.add_argument("--stop", action="store_true", help="end at the first violation")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of text must have a fixed order, or the same seed gives another history.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    logging.basicConfig(level=logging.WARNING if arguments.verbose else logging.CRITICAL)
    seeds = range(arguments.first, arguments.first + arguments.count)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    elif arguments.plant:
        seeds = PLANTS[arguments.plant].seeds[arguments.first : arguments.first + arguments.count]
    failed: list[int] = []
    total: dict[str, float] = {
        "seeds": 0,
        "sent": 0,
        "acked": 0,
        "handled": 0,
        "again": 0,
        "passed_over": 0,
        "outage_s": 0,
    }
    began, simulated = time.monotonic(), 0.0
    for done in outcomes(list(seeds), arguments.plant, arguments.jobs):
        if done.violation:
            failed.append(done.seed)
            plant = f" --plant {arguments.plant}" if arguments.plant else ""
            print(
                f"seed {done.seed}: {done.violation}\n"
                f"replay: python -m tests.sim --seed {done.seed}{plant} --verbose",
                flush=True,
            )
        if arguments.verbose:
            print("\n".join(done.log))
        if arguments.html:
            Path(arguments.html).write_text(timeline(done), "utf-8")
        simulated += done.simulated_s
        total["seeds"] += 1
        for name in ("sent", "acked", "handled", "again", "passed_over"):
            total[name] += done.summary[name]
        total["outage_s"] = max(total["outage_s"], done.summary["outage_s"])
        if total["seeds"] % 100 == 0:
            print(f"{total['seeds']:.0f} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
        if failed and arguments.stop:
            break
    total["failed"] = len(failed)
    total["simulated_minutes"] = round(simulated / 60)
    total["real_s"] = round(time.monotonic() - began)
    print(json.dumps(total))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
