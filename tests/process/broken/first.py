from aioflow import dag, task


@task
def only() -> int:
    return 1


@dag
def shared_name() -> None:
    only()


@dag
def fine() -> None:
    only()
