"""A server's certificate that it signed itself, made by openssl."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

from .binaries import RackError
from .namespaces import run


def self_signed(folder: Path, *addresses: str) -> tuple[Path, Path]:
    """Makes `site.pem` and `site.key` (ECDSA P-256) in a folder, valid for two days at these IP addresses.

    RackError without openssl.
    """
    certificate, key = folder / "site.pem", folder / "site.key"
    names = ",".join(f"IP:{address}" for address in addresses)
    command = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=rack", "-addext", f"subjectAltName={names}"]
    run(_openssl(), *command, "-keyout", str(key), "-out", str(certificate))
    # `rivulet tls` refuses a key that other users can read.
    key.chmod(0o600)
    return certificate, key


def key_hash(certificate: Path) -> str:
    """The hash of a certificate's public key (SPKI, SHA-256, base64), by which Chromium can be told to trust it."""
    public = run(_openssl(), "x509", "-in", str(certificate), "-noout", "-pubkey")
    der = subprocess.run(
        [_openssl(), "pkey", "-pubin", "-outform", "der"], input=public.encode(), capture_output=True, check=True
    ).stdout
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def _openssl() -> str:
    found = shutil.which("openssl")
    if found is None:
        raise RackError("openssl is not installed: `apt install openssl`")
    return found
