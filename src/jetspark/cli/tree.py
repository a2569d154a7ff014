"""The tree of commands, of which only the branch in use is built.

Building a command means reading its signature. Building a hundred commands would take most of a short
command's time, so each is built when it is called, and help lists them by their texts alone.
"""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup
from typer.main import Typer, get_command, get_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Branch:
    """A command before it is built: enough to list it."""

    help: str
    hidden: bool
    build: Callable[[], Any]


class Branches(MutableMapping[str, Any]):
    """Commands by name, each built the first time it is asked for."""

    def __init__(self, branches: dict[str, Branch]) -> None:
        self.branches = branches
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self.branches[name].build()
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command
        self.branches[name] = Branch(command.help or "", command.hidden, lambda: command)

    def __delitem__(self, name: str) -> None:
        del self.branches[name]
        self._built.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)


class Group(TyperGroup):
    """A command with subcommands that are built on use."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the visible subcommands without building them."""
        if not isinstance(self.commands, Branches):
            super().format_commands(ctx, formatter)
            return
        shown = {name: one.help for name, one in self.commands.branches.items() if not one.hidden}
        # The widths are those of the original.
        limit = formatter.width - 6 - max(map(len, shown))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=help).get_short_help_str(limit))
                    for name, help in shown.items()
                ]
            )


def branches(app: Typer) -> dict[str, Branch]:
    """What is registered with an app, by name."""
    found = {
        str(info.name): Branch(info.help or "", info.hidden, partial(_command, info))
        for info in app.registered_commands
    }
    for info in app.registered_groups:
        sub, name, hidden = info.typer_instance, str(info.name), info.hidden is True
        assert sub is not None
        found[name] = Branch(_help(sub), hidden, partial(group_of, sub, name, hidden))
    return found


def group_of(app: Typer, name: str, hidden: bool = False) -> Any:
    """The command with subcommands that an app describes."""
    bare = copy.copy(app)
    bare.registered_commands, bare.registered_groups = [], []
    group = quick(get_group(bare))
    group.name, group.hidden = name, hidden
    group.commands = Branches(branches(app))
    return group


def _command(info: Any) -> Any:
    alone = Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.registered_commands = [info]
    return quick(get_command(alone))


def quick(command: Any) -> Any:
    """The same command, which skips the conversion of values that need none.

    typer converts with pydantic, whose import takes longer than most commands do. An option that was not
    given, a default number and a text for an option that takes text stay as they are either way.
    """
    for param in command.params:
        _shorten(param)
    make_help = command.get_help_option
    command.get_help_option = lambda ctx: _shorten(make_help(ctx))
    return command


def _shorten(param: Any) -> Any:
    # Depending on the version of typer, --help is created again or kept, and there may be none.
    if param is None or "process_value" in vars(param):
        return param
    takes_text = getattr(getattr(param, "type_descriptor", None), "annotation", None) is str
    several = getattr(param, "multiple", False) or param.nargs != 1
    param.process_value = partial(_process, param, takes_text, several, param.process_value)
    return param


def _process(
    param: Any, takes_text: bool, several: bool, convert: Callable[..., Any], ctx: Any, value: Any
) -> Any:
    if value is None and not param.required:
        done: Any = () if several else None
    elif not several and ((takes_text and isinstance(value, str)) or _is_own(param, value)):
        done = value
    else:
        return convert(ctx, value)
    return done if param.callback is None else param.callback(ctx, param, done)


def _is_own(param: Any, value: Any) -> bool:
    return type(value) in (int, float) and value is param.default


def _help(app: Typer) -> str:
    texts = [app.info.help, app.registered_callback.help if app.registered_callback else None]
    return next((text for text in texts if isinstance(text, str)), "")
