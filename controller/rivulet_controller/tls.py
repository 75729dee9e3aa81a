"""Certificates of our listeners, read again when their files change, so that a renewal needs no
restart.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from .listen_config import ServerTls, Tls
from .private_file import require_private

log = logging.getLogger("rivulet.tls")


class Certificates:
    """The files of one listener, as last read without error."""

    def __init__(self, tls: Tls) -> None:
        """Raises OSError with the file's name if one cannot be read."""
        self._tls = tls
        self._seen = self._stamps()
        self.newest = self._read()

    def changed(self) -> bool:
        """Reads changed files. False if none changed or they cannot be used, which is logged once
        for each change.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.newest = self._read()
        except OSError as error:
            log.error("keeping the certificate in use: %s", error)
            return False
        log.info("certificate %s was reloaded", self._tls.certificate)
        return True

    def _paths(self) -> tuple[Path, Path, Path]:
        return self._tls.key, self._tls.certificate, self._tls.authority

    def _read(self) -> tuple[bytes, bytes, bytes]:
        require_private(self._tls.key)
        key, certificate, authority = (path.read_bytes() for path in self._paths())
        return key, certificate, authority

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [stamp(path) for path in self._paths()]


class RenewedCertificate:
    """Keeps a listener's SSLContext in step with its files; new connections use the new
    certificate.
    """

    def __init__(self, tls: ServerTls, context: ssl.SSLContext) -> None:
        self._tls = tls
        self._context = context
        self._seen = self._stamps()

    def follow(self) -> None:
        """Checks the files. Unusable ones change nothing and are logged once for each change."""
        seen = self._stamps()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            require_private(self._tls.key)
            # Tried in another context first: a key that does not fit the certificate would leave
            # this one with neither.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._tls.certificate, self._tls.key)
            self._context.load_cert_chain(self._tls.certificate, self._tls.key)
        except OSError as error:
            log.error("keeping the certificate in use: %s: %s", self._tls.certificate, error)
        else:
            log.info("certificate %s was reloaded", self._tls.certificate)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [stamp(path) for path in (self._tls.certificate, self._tls.key)]


def stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that differs after a file changed; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def server_credentials(tls: Tls | None) -> grpc.ServerCredentials | None:
    """A listener's side of mutual TLS, which requires a certificate signed by the authority.

    Checks the files for changes before each handshake. Raises OSError if one cannot be read now.
    """
    if tls is None:
        return None
    certificates = Certificates(tls)

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = certificates.newest
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        # None keeps the certificate in use, which grpc's type annotations lack.
        lambda: configuration() if certificates.changed() else None,  # type: ignore[arg-type,return-value]
        require_client_authentication=True,
    )
