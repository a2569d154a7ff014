"""The single path to the JetStream API: JSON in, a JSON object out, errors as typed exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetspark._checks import is_positive
from jetspark.errors import InvalidArgument, NoRespondersError, ProtocolError, RequestTimeout
from jetspark.jetstream.errors import JetStreamNotEnabled, error_from_response
from jetspark.jetstream.models.validation import check_name
from jetspark.wire.subjects import validate_filter, validate_subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jetspark.connection.core import Core
    from jetspark.connection.message import Msg

DEFAULT_PREFIX = "$JS.API"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Api:
    """API requests under one prefix. Shared by the context and the handles created from it."""

    def __init__(self, core: Core, *, domain: str | None, api_prefix: str | None, timeout: float) -> None:
        if domain is not None and api_prefix is not None:
            raise InvalidArgument("api_prefix", api_prefix, f"excludes domain={domain!r}; give one of them")
        if domain is not None:
            check_name("domain", domain)
            self.prefix = f"$JS.{domain}.API"
        elif api_prefix is not None:
            if not isinstance(api_prefix, str):
                raise InvalidArgument("api_prefix", api_prefix, "must be a str, such as '$JS.hub.API'")
            self.prefix = api_prefix.removesuffix(".")
            validate_subject(self.prefix, field="api_prefix")
        else:
            self.prefix = DEFAULT_PREFIX
        if not is_positive(timeout):
            raise InvalidArgument("timeout", timeout, "must be a positive number of seconds")
        self.core = core
        self.timeout = float(timeout)

    def subject(self, operation: str) -> str:
        """The full subject of an operation such as ``STREAM.INFO.ORDERS``."""
        return f"{self.prefix}.{operation}"

    async def ask(
        self, operation: str, body: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> Msg:
        """Send a request and return the raw reply. Without responders it raises JetStreamNotEnabled."""
        subject = self.subject(operation)
        seconds = self.timeout if timeout is None else timeout
        self.core.outbox.trust_subject(subject)
        try:
            return await self.core.request(
                subject, _encode(body) if body is not None else b"", timeout=seconds
            )
        except NoRespondersError:
            raise JetStreamNotEnabled.no_responders(subject) from None
        except RequestTimeout:
            reason = self.core.absence() or (
                "the server is busy, has no leader right now, or permissions keep the answer away; "
                "retry, or raise timeout"
            )
            raise RequestTimeout(
                f"no answer to the JetStream API request {subject!r} within {seconds:g}s: {reason}"
            ) from None

    async def request(
        self, operation: str, body: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return the reply's JSON object; an error in it is raised as a typed
        exception."""
        return decode_response((await self.ask(operation, body, timeout)).data)

    async def pages(self, operation: str, key: str, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Every item of a paged list, whatever its length."""
        offset = 0
        while True:
            page = await self.request(operation, {**body, "offset": offset})
            items, total = page.get(key) or [], page.get("total", 0)
            if not isinstance(items, list) or not isinstance(total, int):
                raise ProtocolError(f"{operation}: a page with {key}={items!r:.100} and total={total!r:.100}")
            for item in items:
                yield item
            offset += len(items)
            # An empty page also ends the list: it may have shrunk while we were reading it.
            if not items or offset >= total:
                return


def decode_response(data: bytes) -> dict[str, Any]:
    """The JSON object of an API reply. Raises the error that the reply carries, if any."""
    try:
        response = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"API answer that can't be read: {data[:100]!r}: {error}") from None
    refusal = response.get("error")
    if refusal is not None:
        raise error_from_response(response)
    return response


def subject_filter(subject: str | None) -> dict[str, Any]:
    """The request field that limits a list to the streams that capture this subject; empty for None."""
    if subject is None:
        return {}
    validate_filter(subject)
    return {"subject": subject}
