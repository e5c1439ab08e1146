"""``aioflow completion``: print a shell script that completes commands, options and file names."""

from __future__ import annotations

import argparse

from aioflow.cli.arguments import Nouns

__all__ = ("add_parser", "script")

_SHELLS = ("bash", "zsh", "fish")


def add_parser(nouns: Nouns) -> None:
    """Declare the command."""
    parser = nouns.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Print a shell completion script for aioflow.",
        epilog="example:\n  source <(aioflow completion bash)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_SHELLS)
    parser.set_defaults(run=_print)


def _print(arguments: argparse.Namespace) -> int:
    from aioflow.cli import command_parser

    print(script(arguments.shell, command_parser()))
    return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for a shell."""
    import shtab  # slower to import than all of argparse

    text: str = shtab.complete(parser, shell=shell)
    return text
