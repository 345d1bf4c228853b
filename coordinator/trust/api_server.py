"""The cluster's API server, as agents' tokens are checked by it: asked as our own account."""

import asyncio
from collections.abc import Mapping
from typing import Any

from coordinator.kube.api import ApiAway, Untrusted
from coordinator.kube.login import Mounted
from coordinator.kube.transport import KubeApi
from coordinator.trust.token_review import CannotAsk

LIMIT_S = 5.0
"""For one answer."""

HELP = {
    401: "it does not know our own token",
    403: "we may not: give our ServiceAccount `create` on `tokenreviews.authentication.k8s.io`",
}


class InCluster:
    """Asks as a pod does: by the token and the authorities that are mounted into it."""

    def __init__(self, url: str, ca_file: str | None, token_file: str | None) -> None:
        self._by = Mounted(url, ca_file, token_file)

    async def create(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Create an object; return the answer's body. Raises `CannotAsk`."""
        api = KubeApi(self._by)  # questions are rare: a connection for each
        try:
            async with asyncio.timeout(LIMIT_S):
                answer = await api.ask("POST", path, body=document)
        except TimeoutError:
            raise CannotAsk(f"no answer within {LIMIT_S:.0f} s") from None
        except Untrusted as away:
            raise CannotAsk(f"{away}: look at `service_accounts.ca_file`") from None
        except ApiAway as away:
            raise CannotAsk(str(away)) from None
        finally:
            await api.close()
        if answer.status not in (200, 201):
            why = HELP.get(answer.status, "")
            raise CannotAsk(f"it answers {answer.status}" + (f": {why}" if why else ""))
        return answer.body
