from aioflow import dag, task


@task
def only() -> int:
    return 1


@dag("twin")
def one() -> None:
    only()


@dag("twin")
def two() -> None:
    only()
