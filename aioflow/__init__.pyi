from aioflow.author.public import *  # noqa: F403
from aioflow.author.public import __all__ as __all__
