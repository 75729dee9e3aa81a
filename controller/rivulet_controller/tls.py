"""Certificates of our listeners, read again when their files change: nobody restarts a controller to renew one."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from .config import ServerTls, Tls
from .private_file import require_private

log = logging.getLogger("rivulet.tls")


class Certificates:
    """The files of one listener, as they last were whole."""

    def __init__(self, tls: Tls) -> None:
        """Raises OSError, naming the file, for one that cannot be read."""
        self._tls = tls
        self._seen = self._stamps()
        self.newest = self._read()

    def changed(self) -> bool:
        """Reads files that changed since; False, and said once a change, where they did not or cannot be used."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.newest = self._read()
        except OSError as error:
            log.error("the certificate in use stays: %s", error)
            return False
        log.info("certificate %s was read anew", self._tls.certificate)
        return True

    def _paths(self) -> tuple[Path, Path, Path]:
        return self._tls.key, self._tls.certificate, self._tls.authority

    def _read(self) -> tuple[bytes, bytes, bytes]:
        require_private(self._tls.key)
        key, certificate, authority = (path.read_bytes() for path in self._paths())
        return key, certificate, authority

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [stamp(path) for path in self._paths()]


class Renewing:
    """A listener's certificate in its SSLContext, followed: new connections get what the files say."""

    def __init__(self, tls: ServerTls, context: ssl.SSLContext) -> None:
        self._tls = tls
        self._context = context
        self._seen = self._look()

    def follow(self) -> None:
        """Looks at the files; those that cannot be used change nothing, which is said once a change."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            require_private(self._tls.key)
            # Tried apart first: a key that is not the certificate's would leave the context with neither.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._tls.certificate, self._tls.key)
            self._context.load_cert_chain(self._tls.certificate, self._tls.key)
        except OSError as error:
            log.error("the certificate in use stays: %s: %s", self._tls.certificate, error)
        else:
            log.info("certificate %s was read anew", self._tls.certificate)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [stamp(path) for path in (self._tls.certificate, self._tls.key)]


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def server_credentials(tls: Tls | None) -> grpc.ServerCredentials | None:
    """A listener's side of mutual TLS: whoever shows no certificate of the authority is not let in.

    The files are looked at before each handshake. Raises OSError for one that cannot be read now.
    """
    if tls is None:
        return None
    certificates = Certificates(tls)

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = certificates.newest
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        # None: what is in use stays (grpc's types do not know it).
        lambda: configuration() if certificates.changed() else None,  # type: ignore[arg-type,return-value]
        require_client_authentication=True,
    )
