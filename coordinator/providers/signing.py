"""Requests to Bedrock, signed with an AWS access key by the library that AWS signs with. No I/O.

The only place that knows it. The key stays here: what is returned are headers.
"""

import logging
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as NotReadable
from dataclasses import dataclass, field

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SERVICE = "bedrock"

logging.getLogger("botocore").setLevel(logging.WARNING)  # below, it logs session tokens


@dataclass(frozen=True, slots=True)
class AccessKey:
    """Who signs."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)
    """Of a session that ends."""


def signature(
    key: AccessKey, region: str, url: str, headers: Mapping[str, str], body: bytes
) -> dict[str, str]:
    """Return the headers that sign a POST. `url` is quoted as it is sent; `headers` are signed."""
    request = AWSRequest(method="POST", url=url, data=body, headers=dict(headers))
    SigV4Auth(Credentials(key.id, key.secret, key.token), SERVICE, region).add_auth(request)
    return {name: value for name, value in request.headers.items() if name not in headers}


def read_profile(text: str, profile: str) -> AccessKey | None:
    """Return the key of a section of a file as the AWS tools write it; `None`: it holds none."""
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(text)
    except NotReadable:
        return None
    section = parser[profile] if parser.has_section(profile) else {}
    return of_values(
        section.get("aws_access_key_id"),
        section.get("aws_secret_access_key"),
        section.get("aws_session_token"),
    )


def of_values(key_id: str | None, secret: str | None, token: str | None) -> AccessKey | None:
    """Return a key of its parts, if those are there that it needs."""
    parts = (key_id, secret, token or None)
    if not (key_id and secret) or not all(p is None or p.isprintable() for p in parts):
        return None
    return AccessKey(key_id, secret, token or None)
