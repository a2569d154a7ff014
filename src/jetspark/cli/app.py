"""The root of the command line: shared options, their place, and how a run ends."""

import io
import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from jetspark._secret import Secret
from jetspark.cli import settings, values
from jetspark.cli.errors import UsageError, describe, exit_code
from jetspark.cli.settings import Settings
from jetspark.cli.tree import Branch, Branches, Group, branches, quick

# Every command with its module in this package and its help text, in the order of the help. A module is
# loaded when its command is called. A test compares the texts with those of the commands.
COMMANDS = {
    "pub": ("messages", "Publish messages."),
    "sub": (
        "messages",
        "Print messages of subjects until Ctrl-C; of core NATS, or with --stream of a stream, without acks.",
    ),
    "req": ("messages", "Send a request and print the answers. --timeout says how long to wait."),
    "reply": ("messages", "Answer requests until Ctrl-C, with a fixed text or with the request itself."),
    "top": (
        "top.command",
        "Watch streams and consumers: rates, lag, ack pending, redelivered, waiting pulls.",
    ),
    "server": ("server", "Run a nats-server with JetStream until Ctrl-C."),
    "rtt": ("account", "Measure the round trip to the server."),
    "demo": (
        "demo.command",
        "Show everything at once: live orders, a Spark pipeline, a server crash, and that nothing was lost.",
    ),
    "stream": ("stream.command", "Streams: list, create, change, look into, export and restore."),
    "consumer": ("consumer.command", "Consumers: list, create, change, read through them, pause."),
    "bench": ("bench.command", "Benchmarks of publishing, subscribing and JetStream."),
    "account": ("account", "The account that the credentials belong to."),
    "context": ("context", "Contexts: named connection settings, shared with the nats tool."),
    "pipe": ("pipe.command", "Run a Spark streaming query over streams: read, transform with SQL, write."),
}
# Short and long forms of a name; the help does not list them.
ALIASES = {
    "publish": "pub",
    "subscribe": "sub",
    "request": "req",
    "s": "stream",
    "con": "consumer",
    "acct": "account",
    "ctx": "context",
}

# Options of the root command that may appear anywhere, as in the nats tool. True: it takes a value. No
# command may use these names for something else.
_SHARED = {
    "--server": True,
    "-s": True,
    "--user": True,
    "--password": True,
    "--token": True,
    "--creds": True,
    "--nkey": True,
    "--tlscert": True,
    "--tlskey": True,
    "--tlsca": True,
    "--tlsfirst": False,
    "--context": True,
    "--no-context": False,
    "--timeout": True,
    "--js-domain": True,
    "--domain": True,
    "--js-api-prefix": True,
    "--inbox-prefix": True,
    "--connection-name": True,
    "--debug": False,
}


def hoist(args: Sequence[str]) -> list[str]:
    """The same arguments with the shared options in front; what comes after ``--`` stays."""
    front: list[str] = []
    rest: list[str] = []
    pending = list(args)
    while pending:
        word = pending.pop(0)
        if word == "--":
            rest += [word, *pending]
            break
        takes_value = _SHARED.get(word.partition("=")[0] if word.startswith("--") else word)
        if takes_value is None:
            rest.append(word)
            continue
        front.append(word)
        if takes_value and "=" not in word and pending:
            front.append(pending.pop(0))
    return front + rest


class Root(Group):
    """The root group: shared options may come after the command, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoist(args))


_PANEL = (
    "Connection options may appear anywhere on the line. Each setting is taken from its flag, else from its "
    "environment variable, else from the context (--context, NATS_CONTEXT, or the selected one). When "
    "nothing names a server, it is the one that 'jetspark server' runs on this machine."
)

app = typer.Typer(
    cls=Root,
    help=f"NATS JetStream from the command line.\n\n{_PANEL}\n\n\b\nExample:\n  jetspark server\n"
    "  jetspark stream add ORDERS --subjects 'orders.>'\n  jetspark pub orders.eu '{\"amount\": 12.5}' --js",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"jetspark {version('jetspark')}\n")
        raise typer.Exit(0)


def _text(option: str, env: str | None, help: str, metavar: str) -> Any:
    return typer.Option(option, envvar=env, help=help, metavar=metavar, show_default=False)


@app.callback()
def root(
    server: Annotated[
        str | None,
        typer.Option(
            "--server", "-s", envvar="NATS_URL", metavar="URL", help="Server, or several with commas."
        ),
    ] = None,
    user: Annotated[str | None, _text("--user", "NATS_USER", "User, or token.", "USER")] = None,
    password: Annotated[str | None, _text("--password", "NATS_PASSWORD", "Password.", "PASSWORD")] = None,
    token: Annotated[str | None, _text("--token", "NATS_TOKEN", "Token.", "TOKEN")] = None,
    creds: Annotated[str | None, _text("--creds", "NATS_CREDS", "Credentials file.", "FILE")] = None,
    nkey: Annotated[str | None, _text("--nkey", "NATS_NKEY", "File with an nkey seed.", "FILE")] = None,
    tlscert: Annotated[str | None, _text("--tlscert", "NATS_CERT", "Client certificate.", "FILE")] = None,
    tlskey: Annotated[str | None, _text("--tlskey", "NATS_KEY", "Client certificate's key.", "FILE")] = None,
    tlsca: Annotated[str | None, _text("--tlsca", "NATS_CA", "Authority to trust.", "FILE")] = None,
    tlsfirst: Annotated[bool, typer.Option("--tlsfirst", help="TLS before the server's greeting.")] = False,
    context: Annotated[
        str | None, _text("--context", "NATS_CONTEXT", "Context of the nats tool.", "NAME")
    ] = None,
    no_context: Annotated[
        bool, typer.Option("--no-context", help="Ignore the selected context.", show_default=False)
    ] = False,
    timeout: Annotated[
        str,
        typer.Option("--timeout", envvar="NATS_TIMEOUT", metavar="DURATION", help="Wait for answers."),
    ] = "5s",
    js_domain: Annotated[
        str | None,
        typer.Option("--js-domain", "--domain", metavar="DOMAIN", help="JetStream domain."),
    ] = None,
    js_api_prefix: Annotated[
        str | None, _text("--js-api-prefix", None, "Prefix of the JetStream API.", "PREFIX")
    ] = None,
    inbox_prefix: Annotated[str | None, _text("--inbox-prefix", None, "Prefix of inboxes.", "PREFIX")] = None,
    connection_name: Annotated[
        str, _text("--connection-name", None, "Name shown in monitoring.", "NAME")
    ] = "jetspark-cli",
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something fails.", show_default=False)
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    seconds = values.duration("--timeout", timeout)
    if seconds <= 0:
        raise UsageError(f"invalid --timeout {timeout!r}; it must be greater than zero")
    settings.use(
        Settings(
            server=server or None,
            user=user or None,
            password=Secret(password) if password else None,
            token=Secret(token) if token else None,
            creds=creds or None,
            nkey=nkey or None,
            tlscert=tlscert or None,
            tlskey=tlskey or None,
            tlsca=tlsca or None,
            tlsfirst=tlsfirst,
            context=context or None,
            no_context=no_context,
            timeout=seconds,
            js_domain=js_domain or None,
            js_api_prefix=js_api_prefix or None,
            inbox_prefix=inbox_prefix or None,
            connection_name=connection_name,
            debug=debug,
        )
    )


def _load(name: str) -> Any:
    part = typer.Typer()
    import_module(f"jetspark.cli.{COMMANDS[ALIASES.get(name, name)][0]}").register(part)
    return branches(part)[name].build()


@cache
def tree() -> Any:
    """The root command; commands are loaded on use."""
    root = quick(get_command(app))
    listed = {name: Branch(help, False, partial(_load, name)) for name, (_, help) in COMMANDS.items()}
    hidden = {name: Branch("", True, partial(_load, name)) for name in ALIASES}
    root.commands = Branches(listed | hidden)
    return root


def run(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if args is None else args)
    settings.use(Settings(debug="--debug" in words))
    for target in (sys.stdout, sys.stderr):
        if isinstance(target, io.TextIOWrapper):
            # Names and headers from others may not be encodable: show escapes instead of failing.
            target.reconfigure(errors="backslashreplace")
    try:
        result = tree().main(words, prog_name="jetspark", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except typer.Abort:
        return _fail("aborted", 1)
    except Exception as error:
        if settings.current().debug:
            import traceback

            traceback.print_exc()
        usage = getattr(error, "format_message", None)
        if usage is None:
            return _fail(describe(error), exit_code(error))
        return _misused(error, usage())
    return result if isinstance(result, int) else 0


def _misused(error: Any, message: str) -> int:
    """What typer found wrong with the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
        return 2
    where = getattr(error.ctx, "command_path", "jetspark") if getattr(error, "ctx", None) else "jetspark"
    return _fail(f"{' '.join(message.split())}\n'{where} --help' shows what it takes", error.exit_code)


def _fail(text: str, code: int) -> int:
    from rich.text import Text

    from jetspark.cli.output import console

    sys.stdout.flush()
    console(stderr=True).print(Text("error: ", style="bold red").append(text, style="not bold default"))
    return code
