"""The jobs for Dagster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg


@dg.op(out=dg.DynamicOut(int), config_schema={"count": int})
def numbers(context) -> Iterator[Any]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - a string annotation would fail
    for number in range(context.op_config["count"]):
        yield dg.DynamicOutput(number, mapping_key=str(number))


@dg.op
async def noop(number: int) -> None:
    return None


@dg.op
def noop_def(number: int) -> None:
    return None


@dg.op
def double(number: int) -> int:
    return 2 * number


@dg.op
def total(doubled: list[int]) -> int:
    return sum(doubled)


@dg.op
def first() -> int:
    return 0


@dg.op
def hop(number: int) -> int:
    return number + 1


@dg.job(executor_def=dg.in_process_executor)
def many() -> None:
    numbers().map(noop)


@dg.job(executor_def=dg.in_process_executor)
def many_def() -> None:
    numbers().map(noop_def)


@dg.job(executor_def=dg.in_process_executor)
def fan() -> None:
    total(numbers().map(double).collect())


def chain(hops: int) -> Any:
    """Return a job with ``hops`` ops, one after the other."""

    @dg.job(name=f"chain_{hops}", executor_def=dg.in_process_executor)
    def chained() -> None:
        number = first()
        for place in range(hops - 1):
            number = hop.alias(f"hop_{place}")(number)

    return chained


definitions = dg.Definitions(jobs=[many, many_def, fan, chain(40)])
