"""``aioflow completion``: print a shell script that completes commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from aioflow.cli.arguments import Nouns

__all__ = ("add_parser", "script", "words_of")

_SHELLS = ("bash", "zsh", "fish")

_BASH = """\
# aioflow completion bash > ~/.local/share/bash-completion/completions/aioflow
declare -gA _aioflow_words=(
{table}
)
_aioflow() {{
  local word place=aioflow current="${{COMP_WORDS[COMP_CWORD]}}"
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    [[ -n "${{_aioflow_words[$place $word]+there}}" ]] && place="$place $word"
  done
  COMPREPLY=($(compgen -W "${{_aioflow_words[$place]}}" -- "$current"))
  ((${{#COMPREPLY[@]}})) || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _aioflow aioflow
"""

_ZSH = """\
#compdef aioflow
# aioflow completion zsh > "${{fpath[1]}}/_aioflow"
_aioflow() {{
  local word place=aioflow
  local -A known=(
{table}
  )
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    (( ${{+known[$place $word]}} )) && place="$place $word"
  done
  compadd -- ${{=known[$place]}} || _files
}}
compdef _aioflow aioflow
"""

_FISH = """\
# aioflow completion fish > ~/.config/fish/completions/aioflow.fish
function __aioflow_place
  set -l place aioflow
  for word in (commandline -opc)[2..-1]
    contains -- "$place $word" $__aioflow_places; and set place "$place $word"
  end
  echo $place
end
set -g __aioflow_places {places}
{table}
"""


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

    print(script(arguments.shell, words_of(command_parser(), "aioflow")), end="")
    return 0


def words_of(parser: argparse.ArgumentParser, name: str) -> dict[str, tuple[str, ...]]:
    """Return the words that may follow each command: its subcommands and options."""
    return dict(_words(parser, name))


def _words(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    words: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below += action.choices.items()
            words += action.choices
        elif action.option_strings:
            words += [option for option in action.option_strings if option.startswith("--")]
        else:
            words += [str(choice) for choice in action.choices or ()]
    yield name, tuple(words)
    for word, verb in below:
        yield from _words(verb, f"{name} {word}")


def script(shell: str, words: Mapping[str, tuple[str, ...]]) -> str:
    """Return the script. No word of the commands needs quoting."""
    if shell == "fish":
        lines = [
            f"complete -c aioflow -n 'test (__aioflow_place) = \"{place}\"' -a '{' '.join(known)}'"
            for place, known in words.items()
        ]
        places = " ".join(f"'{place}'" for place in words)
        return _FISH.format(places=places, table="\n".join(lines))
    form = '  ["{}"]="{}"' if shell == "bash" else '    "{}" "{}"'
    table = "\n".join(form.format(place, " ".join(known)) for place, known in words.items())
    return (_BASH if shell == "bash" else _ZSH).format(table=table)
