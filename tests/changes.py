"""Changes that a DAG file may make to its process: one example of code for every kind."""

from __future__ import annotations

__all__ = ("CHANGES", "HARMLESS")

CHANGES = {
    "sets os.environ['AWS_PROFILE']": "import os\nos.environ['AWS_PROFILE'] = 'staging'",
    "removes os.environ['PATH']": "import os\ndel os.environ['PATH']",
    "changes sys.path": "import sys\nsys.path.insert(0, '/nowhere')",
    "changes the working directory": "import os\nos.chdir('/')",
    "changes the umask": "import os\nos.umask(0o011)",
    "changes the priority of the process": "import os\nos.nice(1)",
    "changes limits of the process": (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (4_000_000, "
        "resource.getrlimit(resource.RLIMIT_STACK)[1]))"
    ),
    "changes signal handlers": "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "changes timers that send signals": (
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 10_000)"
    ),
    "changes the locale": "import locale\nlocale.setlocale(locale.LC_ALL, 'C')",
    "changes the default time-out of sockets": "import socket\nsocket.setdefaulttimeout(77)",
    "changes the recursion limit": "import sys\nsys.setrecursionlimit(7_777)",
    "changes the switch interval": "import sys\nsys.setswitchinterval(0.007)",
    "changes the limit on digits of numbers": "import sys\nsys.set_int_max_str_digits(7_777)",
    "changes the stack size of threads": "import threading\nthreading.stack_size(1 << 20)",
    "changes the trace function": "import sys\nsys.setprofile(lambda *_: None)",
    "changes garbage collection": "import gc\ngc.disable()",
    "changes warnings that are raised": "import warnings\nwarnings.simplefilter('error')",
    "changes the root logger": "import logging\nlogging.getLogger().setLevel(5)",
    "changes the event loop policy": (
        "import asyncio\n"
        "class Own(asyncio.DefaultEventLoopPolicy): pass\n"
        "asyncio.set_event_loop_policy(Own())"
    ),
    "changes the decimal context": "import decimal\ndecimal.DefaultContext.prec = 2",
    "changes the decimal context of this thread": "import decimal\ndecimal.getcontext().prec = 2",
    "changes the basic decimal contexts": "import decimal\ndecimal.ExtendedContext.prec = 2",
    "replaces sqlite3.connect": "import sqlite3\nsqlite3.connect = print",
    "replaces hashlib.sha256": "import hashlib\nhashlib.sha256 = hashlib.md5",
    "replaces pathlib.Path.exists": "import pathlib\npathlib.Path.exists = lambda self: True",
    "replaces ssl._create_default_https_context": (
        "import ssl\nssl._create_default_https_context = ssl._create_unverified_context"
    ),
    "replaces sys.stdout": "import io, sys\nsys.stdout = io.StringIO()",
    "replaces sys.excepthook": "import sys\nsys.excepthook = print",
    "replaces threading.excepthook": "import threading\nthreading.excepthook = print",
    "replaces msgspec.field": "import msgspec\nmsgspec.field = None",
    "replaces http.client.HTTPConnection.request": (
        "import http.client\nhttp.client.HTTPConnection.request = None"
    ),
    "replaces xml.dom.getDOMImplementation": (
        "import xml.dom\nxml.dom.getDOMImplementation = None\nimport xml.dom.minidom"
    ),
    "replaces sys.modules['hashlib']": (
        "import sys, types\nsys.modules['hashlib'] = types.ModuleType('hashlib')"
    ),
}
"""Code by the reason reported for it. Each of them alone isolates the DAGs of the file."""

HARMLESS = {
    "ignores warnings": "import warnings\nwarnings.simplefilter('ignore')",
    "sets up logging that is set up": "import logging\nlogging.basicConfig(level=logging.DEBUG)",
    "logs": "import logging\nlogging.getLogger('mine').setLevel(logging.DEBUG)",
    "looks at the loop policy": "import asyncio\nasyncio.get_event_loop_policy()",
    "appends to the path": "import sys\nsys.path.append('/nowhere')",
    "fills caches of Python": (
        "import mimetypes, re, tempfile\n"
        "mimetypes.guess_type('a.txt')\nre.compile('a')\ntempfile.gettempdir()"
    ),
    "adds to a module": "import sqlite3\nsqlite3.mine = 1",
    "sets a variable as it is": "import os\nos.environ['PATH'] = os.environ['PATH']",
    "computes": "import decimal\ndecimal.Decimal(1) / decimal.Decimal(3)",
    "computes in its own context": (
        "import decimal\nwith decimal.localcontext() as own:\n    own.prec = 2"
    ),
    "draws": "import random\nrandom.random()",
    "imports much of Python": (
        "import concurrent.futures.process, csv, ctypes.util, email.mime.text, ftplib\n"
        "import multiprocessing.pool, smtplib, unittest.mock, urllib.request, uuid, xml.dom.minidom"
    ),
    "puts back what it replaces": (
        "import hashlib\nold = hashlib.sha256\nhashlib.sha256 = None\nhashlib.sha256 = old"
    ),
}
"""Code whose changes do not affect other files."""
