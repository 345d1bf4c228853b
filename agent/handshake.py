"""Why a TLS connection to a coordinator fails, in words: tries it once more, and listens.

gRPC says of most failures only that the socket was closed. Blocks; called in a thread.
"""

import socket
import ssl
from dataclasses import dataclass

LIMIT_S = 1.5
"""For the connection, and again for each answer. An agent that stops waits for it."""

_EXPIRED, _NOT_YET = 10, 9
CLOSED = "closed"
"""The coordinator ended the connection without a word, as gRPC does."""

_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


@dataclass(frozen=True, slots=True)
class Ends:
    """Files of our certificate and key, and of the coordinator's authorities."""

    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None


def diagnosed(host: str, port: int, name: str, ends: Ends | None, issuer: str) -> str:
    """Return why, and what to do; empty: nothing is wrong with TLS.

    `ends` `None`: we use none. `issuer`: who signed our certificate; empty: we show none.
    """
    try:
        with socket.create_connection((host, port), LIMIT_S) as plain:
            return _plaintext(plain) if ends is None else _tls(plain, name, ends, issuer)
    except OSError:
        return ""  # nobody is there: gRPC's own words say so


def _plaintext(plain: socket.socket) -> str:
    asked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asked.check_hostname = False
    asked.verify_mode = ssl.CERT_NONE  # only whether it speaks TLS is asked; nothing is sent
    try:
        with asked.wrap_socket(plain):
            return "the coordinator asks for TLS: set `transport: tls`"
    except ssl.SSLError as error:
        is_alert = "_ALERT_" in (error.reason or "")
        return "the coordinator asks for TLS: set `transport: tls`" if is_alert else ""


def _tls(plain: socket.socket, name: str, ends: Ends, issuer: str) -> str:
    try:
        asked = ssl.create_default_context(cafile=ends.ca_file)
        asked.set_alpn_protocols(["h2"])
        if ends.cert_file is not None:
            asked.load_cert_chain(ends.cert_file, ends.key_file)
    except OSError as error:
        return f"files of certificates cannot be used: {(error.strerror or str(error)).lower()}"
    try:
        connected = asked.wrap_socket(plain, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error, name)
    except ssl.SSLError as error:
        return _refused(error.reason or "", issuer)
    with connected:
        try:
            # In TLS 1.3 a client is judged after its handshake; who is content begins to speak.
            return "" if connected.recv(1) else _refused(CLOSED, issuer)
        except ConnectionError:
            return _refused(CLOSED, issuer)
        except ssl.SSLError as error:
            return _refused(error.reason or "", issuer)


def _untrusted(error: ssl.SSLCertVerificationError, name: str) -> str:
    ours = "the coordinator's certificate"
    if error.verify_code == _EXPIRED:
        return f"{ours} has expired: renew it there (`tls.cert_file`), or compare the clocks"
    if error.verify_code == _NOT_YET:
        return f"{ours} is not valid yet: compare the clocks of both machines"
    if error.verify_code in _NAMES:
        return (
            f"{ours} is not for `{name}`: sign one that is, or set `tls.server_name` to a name that"
            " it is for (`lineside certs show`)"
        )
    return (
        f"{ours} is signed by none of the authorities in `tls.ca_file`"
        f" ({error.verify_message.lower()}): give this agent the coordinator's `ca.crt`"
    )


def _refused(reason: str, issuer: str) -> str:
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return (
            "the coordinator speaks no TLS: set `transport: plaintext` here, or better `tls` there"
        )
    if reason != CLOSED and "_ALERT_" not in reason:
        return f"TLS fails: {reason.lower().replace('_', ' ') or 'no reason given'}"
    if not issuer:
        return "the coordinator asks for a certificate: set `tls.cert_file` and `tls.key_file`"
    return (
        f"the coordinator does not accept this agent's certificate, signed by `{issuer}`: add that"
        " authority to its `tls.client_ca_file`, or compare the clocks; its log says which"
    )
