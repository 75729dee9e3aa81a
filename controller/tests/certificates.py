"""Certificates for tests, created by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True)
class Authority:
    """A certificate authority; `certificate` is its own certificate."""

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def make(self) -> Authority:
        """Creates the authority's key and certificate."""
        _openssl(
            "req", "-x509", *_new(self.key), "-out", str(self.certificate), "-days", "2", "-subj", f"/CN={self.name}"
        )
        return self

    def renew(self, name: str, place: tuple[Path, Path], addresses: str = "") -> None:
        """Replaces a certificate and key in place, one file after the other."""
        for new, old in zip(self.sign(name, addresses), place, strict=True):
            new.replace(old)

    def sign(self, name: str, addresses: str = "") -> tuple[Path, Path]:
        """Creates a certificate for a name (and subject alternative names), and its key."""
        certificate, key, request = (self.folder / f"{self.name}-{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self.folder / f"{self.name}-{name}.ext"
        extensions.write_text(f"subjectAltName={addresses or f'DNS:{name}'}\nextendedKeyUsage=clientAuth,serverAuth\n")
        _openssl("req", *_new(key), "-out", str(request), "-subj", f"/CN={name}")
        signer = ("-CA", str(self.certificate), "-CAkey", str(self.key), "-CAcreateserial")
        options = ("-out", str(certificate), "-days", "2", "-extfile", str(extensions))
        _openssl("x509", "-req", "-in", str(request), *signer, *options)
        return certificate, key


def self_signed(certificate: Path, key: Path, name: str, addresses: str) -> None:
    """Creates a self-signed certificate for a name and subject alternative names, and its private key."""
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={addresses}")
    _openssl("req", "-x509", *_new(key), "-out", str(certificate), "-days", "2", *names)
    key.chmod(0o600)


def _new(key: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))


def _openssl(*arguments: str) -> None:
    assert OPENSSL is not None
    done = subprocess.run([OPENSSL, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
