"""When certificates end. Reads public parts alone."""

from datetime import datetime

from cryptography import x509


def ends_of(pem: bytes) -> datetime | None:
    """Return when the first of a chain's certificates ends; `None`: there is none to read."""
    try:
        chain = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return None
    return min((each.not_valid_after_utc for each in chain), default=None)
