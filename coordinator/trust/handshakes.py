"""TLS handshakes of agents that failed: how many, why, and what to do. No I/O.

gRPC tells a server nothing of a handshake that fails: no call begins. It counts them by asking for
the certificate at each (`begun`), and says why in a log of its own, line by line (`hear`).
"""

import re
import threading
from collections import Counter
from dataclasses import dataclass

from lineside.clock import Clock

ATTRIBUTED_S = 15.0
"""A failure is ours if one of our handshakes began within this: other connections of the process
fail in the same words. gRPC gives up a handshake after 20 s; a client's ends at once."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why handshakes fail. The `text` is for people, and says what to do."""

    name: str
    text: str


EXPIRED = Cause(
    "expired",
    "an agent's certificate has expired: renew it (`lineside certs renew`, or whoever issues it)",
)
NOT_YET_VALID = Cause(
    "not_yet_valid",
    "an agent's certificate is not valid yet: compare the clocks of this machine and of the one"
    " that signed it",
)
FOREIGN = Cause(
    "foreign",
    "an agent's certificate is signed by none of the authorities in `tls.client_ca_file`: sign it"
    " by one of them, or add its authority to the file",
)
MISSING = Cause(
    "missing",
    "an agent shows no certificate, and `tls.client_ca_file` asks for one: set its `tls.cert_file`"
    " and `tls.key_file`",
)
OURS = Cause(
    "ours",
    "an agent does not accept the certificate in `tls.cert_file`: its log says why; compare its"
    " `tls.ca_file` and `tls.server_name`",
)
NAME = Cause(
    "name",
    "an agent looks for a name that the certificate in `tls.cert_file` is not for: sign one that"
    " is, or set the agent's `tls.server_name`",
)
PLAINTEXT = Cause(
    "plaintext",
    "somebody speaks no TLS here: an agent with `transport: plaintext`, or a prober",
)
OTHER = Cause(
    "other", "a TLS handshake failed: the agent's log says why (or it was a prober, or a scan)"
)

CAUSES = (EXPIRED, NOT_YET_VALID, FOREIGN, MISSING, OURS, NAME, PLAINTEXT, OTHER)

_FAILED = re.compile(r"\] Handshake failed with (?:fatal )?error .*?OPENSSL_internal:(.*)")

_NAMELESS = re.compile(r"\] No match found for server name")

_WORDS = (
    (re.compile(r"certificate has expired"), EXPIRED),
    (re.compile(r"certificate is not yet valid"), NOT_YET_VALID),
    (re.compile(r"PEER_DID_NOT_RETURN_A_CERTIFICATE"), MISSING),
    (re.compile(r"CERTIFICATE_VERIFY_FAILED"), FOREIGN),
    # OpenSSL sends its alert in clear where BoringSSL expects a packet that is encrypted.
    (re.compile(r"_ALERT_|BAD_PACKET_LENGTH"), OURS),
    (re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|HTTPS_PROXY_REQUEST"), PLAINTEXT),
)


class Handshakes:
    """Of one listener. `begun` and `hear` are called on threads of gRPC's and of the log's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_at = float("-inf")
        # Two threads count, and a third one reads.
        self._lock = threading.Lock()
        self._failed: Counter[Cause] = Counter()
        self._news: dict[Cause, None] = {}

    def begun(self) -> None:
        """Note that a handshake begins."""
        self._began_at = self._clock.monotonic()

    def hear(self, line: str) -> bool:
        """Read one line of gRPC's own log; return whether it is counted here, and told again."""
        cause = _cause(line)
        if cause is None or self._clock.monotonic() - self._began_at > ATTRIBUTED_S:
            return False
        with self._lock:
            self._failed[cause] += 1
            self._news[cause] = None
        return True

    def counts(self) -> Counter[Cause]:
        """Return how many failed since the start, by cause."""
        with self._lock:
            return self._failed.copy()

    def take_news(self) -> list[Cause]:
        """Return why handshakes failed since this was asked."""
        with self._lock:
            news, self._news = self._news, {}
        return list(news)


def _cause(line: str) -> Cause | None:
    if _NAMELESS.search(line):
        return NAME
    if (found := _FAILED.search(line)) is None:
        return None
    return next((cause for words, cause in _WORDS if words.search(found[1])), OTHER)
