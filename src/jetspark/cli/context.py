"""``jetspark context``: the contexts of the nats tool. Secrets are never shown."""

import os
from typing import Annotated, Any

import typer

from jetspark.cli import output
from jetspark.cli.declare import Json, command, group
from jetspark.cli.errors import describe
from jetspark.cli.settings import current
from jetspark.connection.contexts import NatsContext, known_contexts, load_context, selected_context
from jetspark.connection.urls import parse_servers
from jetspark.errors import InvalidArgument

app = group("Contexts: named connection settings, shared with the nats tool.")


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.add_typer(app, name="context")
    root.add_typer(app, name="ctx", hidden=True)


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]


@command(app, "ls", "list", example="jetspark context ls")
def ls(json: Json = False) -> None:
    """List the contexts of this machine; the selected one has a star."""
    chosen = selected_context()
    found = [_summary(name, chosen) for name in known_contexts()]
    if json:
        output.print_json(found)
    elif not found:
        output.notice("no contexts; 'nats context add' makes them, and --server needs none")
    else:
        rows = [
            (
                f"{one['name']}*" if one["selected"] else one["name"],
                one["url"] or one["error"],
                one["description"],
            )
            for one in found
        ]
        output.table("Contexts", ("Name", "Server", "Description"), rows, left=3)


@command(app, "show", "info", example="jetspark context show prod\njetspark context show --json")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: the selected one.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show a context. Passwords, tokens and seeds are shown as ***."""
    context = load_context(name or current().context)
    fields = _fields(context)
    if json:
        output.print_json(fields)
        return
    shown = [
        (key.replace("_", " ").capitalize(), str(value))
        for key, value in fields.items()
        if key != "name" and value not in (None, "", False)
    ]
    output.facts(f"Context {context.name}", [("", shown)])


@command(app, "select", example="jetspark context select prod")
def select(name: Name, json: Json = False) -> None:
    """Make a context the default of this tool and of the nats tool."""
    context = load_context(name)
    folder = os.path.dirname(os.path.dirname(context.path))
    draft = os.path.join(folder, ".context.txt.tmp")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(name)
    os.replace(draft, os.path.join(folder, "context.txt"))
    if json:
        output.print_json({"name": name, "selected": True})
    else:
        output.line(f"selected context {name}")


def _summary(name: str, chosen: str | None) -> dict[str, Any]:
    try:
        context = load_context(name)
    except InvalidArgument as error:
        # One broken file must not hide the others.
        return {
            "name": name,
            "selected": name == chosen,
            "description": "",
            "url": "",
            "error": describe(error),
        }
    return {
        "name": name,
        "selected": name == chosen,
        "description": context.description,
        "url": _safe_url(context),
        "error": "",
    }


def _safe_url(context: NatsContext) -> str:
    # str() of a parsed url has no credentials.
    return ",".join(str(url) for url in parse_servers(context.url.reveal()))


def _fields(context: NatsContext) -> dict[str, Any]:
    def hidden(secret: object) -> str | None:
        return None if secret is None else "***"

    def path(text: str | None) -> str | None:
        if text is None:
            return None
        # Imported late: it loads the signing library, which only this command needs.
        from jetspark.connection.auth import show_path

        # The value may be the secret itself instead of a path.
        return text if show_path(text) == repr(text) else "***"

    # Without a password the user is a token.
    user = hidden(context.user) if context.password is None or context.user is None else context.user.reveal()
    return {
        "name": context.name,
        "path": context.path,
        "description": context.description,
        "url": _safe_url(context),
        "user": user,
        "password": hidden(context.password),
        "token": hidden(context.token),
        "creds": path(context.creds),
        "nkey": path(context.nkey),
        "user_jwt": hidden(context.user_jwt),
        "user_seed": hidden(context.user_seed),
        "cert": context.cert,
        "key": context.key,
        "ca": context.ca,
        "tls_first": context.tls_first,
        "inbox_prefix": context.inbox_prefix,
        "jetstream_domain": context.jetstream_domain,
        "jetstream_api_prefix": context.jetstream_api_prefix,
    }
