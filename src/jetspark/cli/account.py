"""``jetspark account`` and ``jetspark rtt``: the account in use, and the round-trip time to the server."""

import statistics
from typing import Annotated, Any

import typer

from jetspark.cli import output
from jetspark.cli.declare import Json, command, group
from jetspark.cli.output import bytes_text, limit_text, number, seconds_text
from jetspark.cli.settings import connection, current, run
from jetspark.models import AccountTier

account = group("The account that the credentials belong to.")


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.add_typer(account, name="account")
    app.add_typer(account, name="acct", hidden=True)
    command(app, "rtt", example="jetspark rtt\njetspark rtt 20 --json")(rtt)


@command(account, "info", example="jetspark account info\njetspark account info --json")
def info(json: Json = False) -> None:
    """Show the connection, and what the account uses of JetStream and may use."""

    async def work() -> dict[str, Any]:
        async with connection() as nc:
            server = nc.server_info
            found: dict[str, Any] = {
                "connection": {
                    "server": nc.connected_url,
                    "server_name": server.server_name,
                    "version": server.version,
                    "cluster": server.cluster,
                    "client_id": nc.client_id,
                    "client_ip": server.client_ip,
                    "max_payload": nc.max_payload,
                    "tls": server.tls_required,
                    "rtt_seconds": await nc.rtt(),
                },
                "jetstream": None,
            }
            if server.jetstream or current().js_domain or current().js_api_prefix:
                js = nc.jetstream(
                    domain=current().js_domain,
                    api_prefix=current().js_api_prefix,
                    timeout=current().timeout,
                )
                found["jetstream"] = await js.account_info()
            return found

    found = run(work())
    if json:
        output.print_json(found)
        return
    link, usage = found["connection"], found["jetstream"]
    groups = [
        (
            "Connection",
            [
                ("Server", f"{link['server']} ({link['server_name']}, {link['version']})"),
                ("Client", f"{link['client_id']} from {link['client_ip']}"),
                ("Max payload", bytes_text(link["max_payload"])),
                ("TLS", "yes" if link["tls"] else "no"),
                ("Round trip", seconds_text(link["rtt_seconds"])),
            ],
        )
    ]
    if usage is None:
        groups.append(("JetStream", [("Enabled", "no")]))
    else:
        groups.append(("JetStream", _usage(usage)))
        groups += [(f"JetStream, tier {name}", _usage(tier)) for name, tier in usage.tiers.items()]
    output.facts("Account", groups)


def _usage(tier: AccountTier) -> list[tuple[str, str]]:
    limits = tier.limits
    return [
        ("Memory", f"{bytes_text(tier.memory)} of {limit_text(limits.max_memory, bytes_text)}"),
        ("Storage", f"{bytes_text(tier.storage)} of {limit_text(limits.max_storage, bytes_text)}"),
        ("Streams", f"{number(tier.streams)} of {limit_text(limits.max_streams)}"),
        ("Consumers", f"{number(tier.consumers)} of {limit_text(limits.max_consumers)}"),
    ]


def rtt(
    count: Annotated[int, typer.Argument(metavar="COUNT", help="How many round trips.", min=1)] = 5,
    json: Json = False,
) -> None:
    """Measure the round trip to the server."""

    async def work() -> tuple[str | None, list[float]]:
        async with connection() as nc:
            return nc.connected_url, [await nc.rtt() for _ in range(count)]

    server, times = run(work())
    if json:
        output.print_json(
            {
                "server": server,
                "count": count,
                "min_seconds": min(times),
                "mean_seconds": statistics.fmean(times),
                "max_seconds": max(times),
            }
        )
    else:
        output.line(
            f"{server}: {seconds_text(statistics.fmean(times))} on average of {count}, "
            f"{seconds_text(min(times))} to {seconds_text(max(times))}"
        )
