from aioflow import dag

def broken(:
    pass
