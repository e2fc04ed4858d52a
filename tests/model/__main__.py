"""Runs the election model from the command line."""

from __future__ import annotations

import argparse
import sys

from tests.model.election import BREAKS, Model, Violation, explore, walk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--walks", type=int, default=1000, help="random walks for each flush mode")
    parser.add_argument("--steps", type=int, default=80, help="steps of a walk")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--exhaustive", type=int, metavar="DEPTH", help="visit every state instead")
    parser.add_argument("--states", type=int, default=200_000, help="most states to visit")
    parser.add_argument("--broken", choices=BREAKS, default="", help="leave out one rule")
    asked = parser.parse_args()
    try:
        for flushes in (True, False):
            model = Model(asked.members, flushes=flushes, broken=asked.broken)
            name = "SYNC_FLUSH" if flushes else "ASYNC_FLUSH"
            if asked.exhaustive is not None:
                count, is_all = explore(model, asked.exhaustive, asked.states)
                print(f"{name}: {count} states, {'all' if is_all else 'stopped there'}")
            else:
                taken = sum(walk(model, seed, asked.steps) for seed in range(asked.walks))
                print(f"{name}: {asked.walks} walks, {taken} steps")
    except Violation as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
