"""gRPC's credentials of a listener, which follow files of certificates. Knows no services."""

from collections.abc import Callable

import grpc

from lineside.certificates import Files, Material


def following(files: Files, begun: Callable[[], None] | None = None) -> grpc.ServerCredentials:
    """Return credentials by what is in the files at each handshake.

    With authorities in the files, callers must show a certificate. `begun` is called, on a thread
    of gRPC's, as each handshake begins: of those that fail gRPC tells nobody.
    """

    given = files.material

    def look() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if begun is not None:
            begun()
        files.look()
        if given is files.material:
            return None
        given = files.material
        return _configured(given)

    return grpc.dynamic_ssl_server_credentials(
        _configured(given),
        look,  # type: ignore[arg-type]  # `None` is documented: nothing has changed
        given.authorities is not None,
    )


def _configured(material: Material) -> grpc.ServerCertificateConfiguration:
    pairs = [(material.key, material.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, material.authorities)
