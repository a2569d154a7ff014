"""How commands are declared: a docstring, an example, and options that several commands may share."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from jetspark.cli.tree import Group

F = TypeVar("F", bound=Callable[..., Any])

Json = Annotated[bool, typer.Option("--json", "-j", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.", show_default=False)]
ConsumerName = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.", show_default=False)
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header; may be repeated."),
]


def text_option(flag: str, metavar: str, help: str) -> Any:
    """An option with a value."""
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=help)]


def number_option(flag: str, help: str) -> Any:
    """An option with an integer."""
    return Annotated[int | None, typer.Option(flag, metavar="N", help=help)]


def flag_option(name: str, help: str) -> Any:
    """An option that is on, off, or not given."""
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help, show_default=False)]


def many_option(flag: str, metavar: str, help: str) -> Any:
    """An option that may be repeated."""
    return Annotated[list[str] | None, typer.Option(flag, metavar=metavar, help=help)]


def group(help: str) -> typer.Typer:
    """A command with subcommands."""
    return typer.Typer(
        cls=Group, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def command(
    app: typer.Typer, *names: str, example: str, options: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Register a function as a command. ``names``: its name and hidden aliases.

    ``options`` are added to the function's own; it gets them by name in its ``**given``, unset ones as None.
    """

    def register(function: F) -> F:
        called: Callable[..., Any] = function if options is None else _extend(function, options)
        examples = "\n".join(f"  {line}" for line in example.splitlines())
        # \b keeps the lines of a paragraph as they are.
        text = f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExample:\n{examples}"
        for number, name in enumerate(names):
            app.command(name, help=text, hidden=number > 0)(called)
        return function

    return register


def _extend(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(**given: Any) -> Any:
        return function(**given)

    own = inspect.signature(function)
    parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    parameters.sort(key=lambda one: one.kind)
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    # inspect.signature would follow it to the wrapped function.
    del called.__wrapped__
    return called
