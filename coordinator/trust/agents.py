"""All that an agent must show to be heard, put together from the settings; and how that stands.

`look` must be called about once a second. Nothing here judges: `proof` and `token_review` do.
"""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.config import Config
from coordinator.doors.callers import is_local
from coordinator.trust.api_server import InCluster
from coordinator.trust.handshakes import CAUSES, Handshakes
from coordinator.trust.proof import All, OwnCertificate, Proof, SharedToken
from coordinator.trust.server_tls import following
from coordinator.trust.token_review import TokenReview
from lineside import certificates, logs
from lineside.certificates import Files
from lineside.clock import Clock
from lineside.schema import split_address

REFUSED_S = 60.0
"""How long a refusal is a degraded state after it."""

MOST_REFUSALS = 32
"""Different ones that are remembered; the one that is longest ago is forgotten first."""

log = logs.get("coordinator.trust.agents")


class AgentTrust:
    """One coordinator's. Raises `lineside.certificates.Unusable` where its files cannot be used."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.handshakes = Handshakes(clock)
        self._clock = clock
        self._refused: dict[str, float] = {}
        """Why agents were refused a short while ago, and when last."""
        self._files = _files(config)
        self._review = _review(config, clock)
        self.proof = _proof(config, self._review)

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return what agents' listener proves itself by; `None`: it is plaintext."""
        return following(self._files, self.handshakes.begun) if self._files else None

    def note(self, text: str) -> None:
        """Take note of an agent that was refused."""
        self._refused.pop(text, None)
        if len(self._refused) == MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]
        self._refused[text] = self._clock.monotonic()

    async def look(self) -> None:
        """Look at the files and at what gRPC says, and tell what is new."""
        if self._files is not None:
            await asyncio.to_thread(self._files.look)  # a network's disk may take its time
        for cause in self.handshakes.take_news():
            if cause.text not in self._refused:
                log.warning("agent refused", status="TLS", reason=cause.text)
            self.note(cause.text)
        past = self._clock.monotonic() - REFUSED_S
        self._refused = {text: at for text, at in self._refused.items() if at > past}

    def degraded(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as it should be: a code and a sentence."""
        if self._files is not None:
            yield from self._files.troubles(certificates.now())
        if self._review is not None and self._review.away:
            text = f"agents' tokens cannot be checked: the API server: {self._review.away}"
            yield "token_review_away", text
        for text in self._refused:
            yield "agent_refused", f"an agent was refused: {text}"

    def remaining(self) -> Iterator[tuple[str, float]]:
        """Yield for how many seconds each certificate still holds; below 0: it has ended."""
        if self._files is not None:
            now = certificates.now()
            for what, at in self._files.ends():
                yield what, (at - now).total_seconds()


class TrustMetrics(Collector):
    """What is read of it whenever Prometheus asks."""

    def __init__(self, trust: AgentTrust) -> None:
        self._trust = trust

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        text = "TLS handshakes on agents' listener that failed, by cause (see docs/security.md)"
        failed = CounterMetricFamily("lineside_agent_handshakes_failed", text, labels=["cause"])
        counts = self._trust.handshakes.counts()
        for cause in CAUSES:
            failed.add_metric([cause.name], counts[cause])
        yield failed
        text = "For how long certificates of agents' listener still hold; below 0: they have ended"
        left = GaugeMetricFamily("lineside_certificate_remaining_seconds", text, labels=["what"])
        for what, seconds in self._trust.remaining():
            left.add_metric([what], seconds)
        yield left


def _files(config: Config) -> Files | None:
    if config.transport == "plaintext":
        if not is_local(split_address(config.grpc)[0]):
            log.warning("agents connect in plaintext", listening=config.grpc)
        return None
    names = ("tls.cert_file", "tls.key_file", "tls.client_ca_file")
    said = config.tls
    cert, key, ca = (
        Path(name) if name is not None else None
        for name in (said.cert_file, said.key_file, said.client_ca_file)
    )
    return Files(cert, key, ca, names)


def _review(config: Config, clock: Clock) -> TokenReview | None:
    if config.node_proof != "service-account":
        return None
    said = config.service_accounts
    asked = InCluster(said.api_server, said.ca_file, said.token_file)
    return TokenReview(asked, said.accounts, said.audience, clock, needs_node=said.needs_node)


def _proof(config: Config, review: TokenReview | None) -> Proof:
    proofs: list[Proof] = [] if review is None else [review]
    if config.agent_token is not None:
        proofs.append(SharedToken(config.agent_token))
    if config.tls.client_ca_file is not None and config.node_proof in (None, "certificate"):
        proofs.append(OwnCertificate())
    if not (proofs or config.tls.client_ca_file or is_local(split_address(config.grpc)[0])):
        log.warning("anybody may connect as an agent", listening=config.grpc)
    return All(proofs)
