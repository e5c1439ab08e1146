"""Run seeds of the simulator, or check that planted bugs are caught.

python -m tests.sim --level 1 --seeds 1000
python -m tests.sim --level 2 --seed 17 --trace
python -m tests.sim --replay '{"level":1,"seed":17}' --trace
python -m tests.sim --judge
python -m tests.sim --judge fence_without_epoch --draw
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from tests.sim.judge import SECONDS, Finding, Judge, Judgement, Unusable
from tests.sim.planted import BUGS
from tests.sim.planted.bug import PlantedBug
from tests.sim.planted.edit import DoesNotApply
from tests.sim.shrink import Recipe, commit, replay, shrink
from tests.sim.verdict import Verdict

_SHRINK_SECONDS = 60


def main() -> int:
    """Run the command. Return its exit status.

    It is 1 if a seed broke an invariant, if a planted bug was not caught, or if ``--judge`` names
    a bug that does not exist.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--level", type=int, choices=(1, 2, 3), help="1 unless said otherwise")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="stop after so much processor time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, nargs="+", help="play these alone")
    parser.add_argument("--replay", metavar="JSON", help="play what a shrunk seed says")
    parser.add_argument("--trace", action="store_true", help="tell every turn of it")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--judge", nargs="*", metavar="BUG", help="planted bugs; all by default")
    parser.add_argument("--draw", action="store_true", help="by seeds from the first on alone")
    parser.add_argument("--jobs", type=int, default=2, help="processes of --judge at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines of what was judged")
    args = parser.parse_args()
    if args.judge is not None:
        return _judge(args)
    if args.replay is not None:
        return _one(msgspec.json.decode(args.replay, type=Recipe), args)
    if args.seed is not None:
        return max(_one(Recipe(args.level or 1, seed), args) for seed in args.seed)
    return _many(args)


def _judge(args: argparse.Namespace) -> int:
    unknown = [name for name in args.judge if name not in BUGS]
    if unknown:
        print(f"no planted bugs: {', '.join(unknown)}", file=sys.stderr)
        return 1
    bugs = [BUGS[name] for name in args.judge or BUGS]
    try:
        judged = asyncio.run(_judge_each(bugs, args))
    except Unusable as exc:
        print(exc, file=sys.stderr)
        return 1
    if args.out is not None:
        order = list(BUGS)
        judged.sort(key=lambda one: order.index(one.bug))
        args.out.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in judged))
    caught = sum(one.is_caught for one in judged)
    print(f"{caught} of {len(judged)} were caught")
    return int(caught < len(judged))


async def _judge_each(bugs: list[PlantedBug], args: argparse.Namespace) -> list[Judgement]:
    """Judge the bugs concurrently, and print each judgement as soon as it is made."""
    judge = Judge(args.jobs, args.seconds or SECONDS, args.first)
    levels = (1, 2) if args.level is None else (args.level,)
    judged = []

    async def judge_one(bug: PlantedBug) -> None:
        try:
            one = await (judge.draw(bug, levels) if args.draw else judge.judge(bug))
        except (DoesNotApply, Unusable) as exc:
            one = Judgement(bug.name, [Finding("judge", is_caught=False, seconds=0, said=str(exc))])
        judged.append(one)
        for found in one.findings:
            print(f"{one.bug:44} {found}  {found.said[:80]}", flush=True)

    await (judge.hold(levels) if args.draw else judge.hold_together(bugs))
    async with asyncio.TaskGroup() as judging:
        for bug in bugs:
            judging.create_task(judge_one(bug))
    return judged


def _one(recipe: Recipe, args: argparse.Namespace) -> int:
    verdict = replay(recipe, print if args.trace else None)
    print(
        f"seed {verdict.seed}: {verdict.steps} turns, {verdict.digest}, {verdict.broken or 'well'}"
    )
    if verdict.broken and recipe.faults is None:
        _tell(verdict, recipe.level, args)
    return int(verdict.broken is not None)


def _many(args: argparse.Namespace) -> int:
    level = args.level or 1
    began, used, steps, points = time.monotonic(), time.process_time(), 0, Counter[str]()
    played = 0
    seeds = (
        itertools.count(args.first) if args.seconds else range(args.first, args.first + args.seeds)
    )
    for seed in seeds:
        if args.seconds and time.process_time() - used > args.seconds:
            break
        verdict = replay(Recipe(level, seed))
        played += 1
        steps += verdict.steps
        points.update(verdict.points)
        if verdict.broken is not None:
            print(f"seed {seed}: {verdict.broken}", flush=True)
            _tell(verdict, level, args)
            return 1
    minutes = (time.monotonic() - began) / 60
    print(f"{played} seeds, {steps} turns, {steps / minutes:,.0f} a minute")
    for point, count in points.most_common():
        print(f"{count:9} {point}")
    return 0


def _tell(verdict: Verdict, level: int, args: argparse.Namespace) -> None:
    """Print how to reproduce the failure, and its shrunk recipe."""
    faults = f"{len(verdict.faults)} faults and requests"
    again = f"python -m tests.sim --level {level} --seed {verdict.seed} --trace"
    print(f"at {commit()}, {verdict.steps} turns, {faults}: {again}", flush=True)
    if not args.no_shrink:
        print(shrink(verdict, _SHRINK_SECONDS, level=level))


if __name__ == "__main__":
    sys.exit(main())
