"""Turns TLS settings into an ``ssl.SSLContext``, and OpenSSL's errors into texts that a person can act on.

The certificate chain and the host name are verified unless ``tls_verify=False`` says otherwise explicitly;
nothing else turns this off.
"""

from __future__ import annotations

import os
import ssl
from typing import TypeAlias

from jetspark.errors import InvalidArgument, TLSError

Path: TypeAlias = "str | os.PathLike[str]"

_EXPIRED, _NOT_YET_VALID = 10, 9
_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN = 18, 19
_UNKNOWN_ISSUER, _UNVERIFIABLE_LEAF = 20, 21
_HOSTNAME_MISMATCH, _IP_MISMATCH = 62, 64

# OpenSSL's reasons when the first bytes of a server are plain text.
_PLAINTEXT_REASONS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_VERSION_REASONS = frozenset(
    {
        "UNSUPPORTED_PROTOCOL",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "NO_PROTOCOLS_AVAILABLE",
        "VERSION_TOO_LOW",
    }
)
_CLIENT_CERT_MISSING = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
    }
)
_CLIENT_CERT_REFUSED = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
    }
)


def build_ssl_context(
    tls: ssl.SSLContext | bool | None = None,
    *,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    verify: bool = True,
) -> ssl.SSLContext | None:
    """Make the context for a connection, or ``None`` when nothing here asks for TLS.

    ``tls``     your own ``SSLContext`` (the other options must then stay unset), ``True`` to demand
                TLS, ``False`` to forbid it, ``None`` (default) to decide by the other options.
    ``ca``      PEM file, or directory of hashed PEM files, of the authorities to trust *instead of* the
                system's.
    ``cert``    PEM file of the client certificate chain; it may hold the private key too.
    ``key``     PEM file of the client's private key, unencrypted.
    ``verify``  ``False`` accepts any certificate for any host: for experiments only.
    """
    files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    given = [name for name, value in files.items() if value is not None]
    for name in given:
        if not isinstance(files[name], str | os.PathLike):
            raise InvalidArgument(name, type(files[name]).__name__, "must be the path of a PEM file")
        if not os.fspath(files[name] or ""):
            raise InvalidArgument(name, "", "the path is empty; leave the option out instead")
    if isinstance(tls, ssl.SSLContext):
        if given or not verify:
            extra = ", ".join(given + ([] if verify else ["tls_verify"]))
            raise InvalidArgument(
                "tls",
                "SSLContext",
                f"can't be combined with {extra}: set these on the context itself",
            )
        return tls
    if tls is not None and not isinstance(tls, bool):
        raise InvalidArgument("tls", type(tls).__name__, "must be an ssl.SSLContext, True, False or None")
    if tls is False:
        if given:
            raise InvalidArgument(
                "tls",
                False,
                f"can't be combined with {', '.join(given)}: drop one of them",
            )
        return None
    if key is not None and cert is None:
        raise InvalidArgument("tls_key", os.fspath(key), "needs tls_cert, the certificate it belongs to")
    if tls is None and not given:
        return None
    return _new_context(ca, cert, key, verify)


def _new_context(ca: Path | None, cert: Path | None, key: Path | None, verify: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and host name by default
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_ca(context, _expand(ca))
    if cert is not None:
        _load_cert(context, _expand(cert), None if key is None else _expand(key))
    return context


def translate_ssl_error(exc: BaseException, host: str) -> TLSError:
    """Say what went wrong in a handshake with ``host`` and what to do. Raise the result ``from exc``."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return TLSError(_explain_verification(exc, host))
    if isinstance(exc, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError, EOFError)):
        return TLSError(
            f"{host} closed the connection during the TLS handshake: it may not offer TLS on this port, "
            "may ask for a client certificate (tls_cert), or may want tls_handshake_first the other way"
        )
    if isinstance(exc, TimeoutError):
        return TLSError(
            f"{host} did not finish the TLS handshake in time: it may be waiting for the plain NATS INFO "
            "first (tls_handshake_first), or be overloaded (connect_timeout)"
        )
    reason = getattr(exc, "reason", None) or ""
    if reason in _PLAINTEXT_REASONS or reason.endswith("RECORD_LAYER_FAILURE"):
        return TLSError(
            f"{host} answered in plain text to a TLS handshake: it does not offer TLS on this port; "
            "use the server's TLS port, or drop tls_handshake_first if it sends INFO before TLS"
        )
    if reason in _VERSION_REASONS:
        return TLSError(f"{host} offers no TLS version that we accept: it must support TLS 1.2 or newer")
    if reason in _CLIENT_CERT_MISSING:
        return TLSError(
            f"{host} refused the handshake: it likely asks for a client certificate; set tls_cert"
        )
    if reason in _CLIENT_CERT_REFUSED:
        return TLSError(
            f"{host} refused our client certificate ({reason.lower()}): check that tls_cert is valid now "
            "and signed by an authority that the server trusts"
        )
    return TLSError(f"TLS with {host} failed: {reason or str(exc) or type(exc).__name__}")


def _explain_verification(exc: ssl.SSLCertVerificationError, host: str) -> str:
    code = exc.verify_code
    if code == _EXPIRED:
        return (
            f"the certificate of {host} has expired: renew it on the server (or check this machine's clock)"
        )
    if code == _NOT_YET_VALID:
        return f"the certificate of {host} is not valid yet: check this machine's clock"
    if code in (_HOSTNAME_MISMATCH, _IP_MISMATCH):
        return (
            f"the certificate is not for {host}: connect by a name that it holds, or set tls_hostname to "
            f"that name ({exc.verify_message})"
        )
    if code in (
        _SELF_SIGNED,
        _SELF_SIGNED_IN_CHAIN,
        _UNKNOWN_ISSUER,
        _UNVERIFIABLE_LEAF,
    ):
        return (
            f"the certificate of {host} is signed by an authority that is not trusted here: set tls_ca to "
            f"the PEM file of that authority ({exc.verify_message})"
        )
    return f"the certificate of {host} was refused: {exc.verify_message}"


def _expand(path: Path) -> str:
    return os.path.expanduser(os.fspath(path))


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError as exc:
        raise TLSError(f"tls_ca={path!r} holds no PEM certificate (-----BEGIN CERTIFICATE-----)") from exc
    except OSError as exc:
        raise _unreadable("tls_ca", path, exc) from exc


class _KeyIsEncrypted(Exception):
    """Raised instead of a password: OpenSSL would otherwise stop and ask on the terminal."""


def _refuse_password() -> str:
    raise _KeyIsEncrypted


def _load_cert(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        if path is not None:
            try:
                with open(path, "rb"):
                    pass
            except OSError as exc:
                raise _unreadable(name, path, exc) from exc
    where = f"tls_key={key!r}" if key is not None else f"tls_cert={cert!r}"
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except _KeyIsEncrypted:
        raise TLSError(
            f"{where}: the private key is encrypted; decrypt it (openssl pkey), or load it into an "
            "ssl.SSLContext of your own and pass that as tls"
        ) from None
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise TLSError(f"{where} is not the private key of the certificate in tls_cert={cert!r}") from exc
        if key is None:
            rule = "must hold a PEM certificate and its private key; or give the key in tls_key"
            raise TLSError(f"tls_cert={cert!r} {rule}") from exc
        raise TLSError(
            f"tls_cert={cert!r} and {where} can't be loaded: the first must hold a PEM certificate, the "
            "second a PEM private key"
        ) from exc


def _unreadable(name: str, path: str, exc: OSError) -> TLSError:
    return TLSError(
        f"{name}={path!r} can't be read: {exc.strerror or type(exc).__name__}; check path and permissions"
    )
