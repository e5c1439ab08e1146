"""Play seeds, or judge planted bugs.

python -m tests.sim --level 1 --seeds 1000
python -m tests.sim --level 1 --seed 17 --trace
python -m tests.sim --judge patches/
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

from tests.sim import loop_model, model
from tests.sim.judge import judge
from tests.sim.shrink import shrink


def main() -> int:
    """Return 1 if a seed broke something, or a planted bug was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--level", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--trace", action="store_true", help="tell every turn of it")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--judge", type=Path, metavar="DIR")
    args = parser.parse_args()
    if args.judge is not None:
        return _judge(args.judge)
    if args.seed is not None:
        return _one(args)
    return _many(args)


def _judge(folder: Path) -> int:
    judgements = judge(folder)
    for found in judgements:
        print(f"{found.verdict:14} {found.seconds:6.1f} s  {found.patch}  {found.said[:160]!r}")
    return int(any(found.verdict != "caught" for found in judgements))


def _one(args: argparse.Namespace) -> int:
    trace = print if args.trace else None
    play = model.play if args.level == 1 else loop_model.play
    verdict = play(args.seed, trace=trace)
    print(
        f"seed {verdict.seed}: {verdict.steps} turns, {verdict.digest}, {verdict.broken or 'well'}"
    )
    if verdict.broken and args.level == 1 and not args.no_shrink:
        print(shrink(verdict, 60))
    return int(verdict.broken is not None)


def _many(args: argparse.Namespace) -> int:
    play = model.play if args.level == 1 else loop_model.play
    began, steps, points = time.monotonic(), 0, Counter[str]()
    played = 0
    seeds = (
        itertools.count(args.first) if args.seconds else range(args.first, args.first + args.seeds)
    )
    for seed in seeds:
        if args.seconds and time.monotonic() - began > args.seconds:
            break
        verdict = play(seed)
        played += 1
        steps += verdict.steps
        points.update(verdict.points)
        if verdict.broken is not None:
            print(f"seed {seed}: {verdict.broken}")
            if args.level == 1 and not args.no_shrink:
                print(shrink(verdict, 60))
            return 1
    minutes = (time.monotonic() - began) / 60
    print(f"{played} seeds, {steps} turns, {steps / minutes:,.0f} a minute")
    for point, count in points.most_common():
        print(f"{count:9} {point}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
