"""``aioflow bench``: measure the cost of deferred triggers on this machine."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from aioflow.cli.arguments import (
    Nouns,
    add_command,
    add_group,
    complete_paths,
    positive,
    seconds,
)
from aioflow.cli.output import hint, print_json, print_table

__all__ = ("add_parser",)

_KINDS = ("time", "file", "run", "private", "mixed")
_SHAPES = ("wide", "runs")


def add_parser(nouns: Nouns) -> None:
    """Declare ``aioflow bench`` and its command."""
    verbs = add_group(
        nouns,
        "bench",
        text="measure resource use on this machine",
        example="aioflow bench density --triggers 100 --kind time --seconds 1",
    )
    density = add_command(
        verbs,
        "density",
        _density,
        text="measure memory and idle CPU time of deferred triggers",
        example="aioflow bench density --triggers 1000,10000 --kind time,file --plot density.svg",
        remote=False,
    )
    density.description = (
        "Defers tasks to triggers on a daemon of its own, on a temporary home; beside each figure "
        "stand as many bare asyncio tasks."
    )
    density.add_argument(
        "--triggers",
        type=_numbers,
        default=[1_000, 10_000],
        metavar="N,...",
        help="how many, default 1000,10000",
    )
    density.add_argument(
        "--kind",
        type=_kinds,
        default=["time", "file", "run", "private"],
        metavar="KIND,...",
        help=f"of {', '.join(_KINDS)}; each on a daemon of its own",
    )
    density.add_argument(
        "--shape", choices=_SHAPES, default="wide", help="one wide map, or as many runs"
    )
    density.add_argument(
        "--seconds",
        type=partial(seconds, least=0.1),
        default=10.0,
        metavar="S",
        help="of idle time measured",
    )
    plot = density.add_argument(
        "--plot", metavar="FILE", help="write an SVG too; needs aioflow-engine[plot]"
    )
    complete_paths(plot, "file")


def _numbers(text: str) -> list[int]:
    """Parse a comma-separated list of integers of at least 1."""
    return [positive(part) for part in text.split(",")]


def _kinds(text: str) -> list[str]:
    """Parse a comma-separated list of trigger kinds."""
    kinds = text.split(",")
    for kind in kinds:
        if kind not in _KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(_KINDS)}")
    return kinds


def _density(arguments: argparse.Namespace) -> int:
    import msgspec

    from aioflow.cli.density import import_matplotlib, measure, write_density_plot

    if arguments.plot:
        import_matplotlib()  # a missing library is reported before minutes of measuring
    found = []
    for kind in arguments.kind:
        for triggers in arguments.triggers:
            hint(f"{triggers} triggers, {kind} ...")
            found.append(measure(kind, triggers, shape=arguments.shape, seconds=arguments.seconds))
    if arguments.json:
        print_json(msgspec.to_builtins(found))
    else:
        print_table(
            ("KIND", "TRIGGERS", "BYTES", "BARE TASK", "IDLE %", "IDLE us/s", "DEFERRED IN"),
            (
                (
                    one.kind,
                    one.triggers,
                    one.bytes_each,
                    one.bare.bytes_each,
                    one.idle_percent,
                    one.idle_us_each,
                    f"{one.defer_seconds} s",
                )
                for one in found
            ),
            empty="nothing was measured",
        )
    if arguments.plot:
        write_density_plot(Path(arguments.plot), found)
    return 0
