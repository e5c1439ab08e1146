from aioflow import chain, dag, task


@task
def a() -> None: ...


@task
def b() -> None: ...


@dag
def circle() -> None:
    first, second = a(), b()
    chain(first, second)
    chain(second, first)
