"""Unmodified nginx, with all its files in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from .binaries import RackError

CONFIG = """\
user root; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off; sendfile on; default_type application/octet-stream;
  types {{ text/html html; image/svg+xml svg; }}
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{certificate}  server {{ {listen} root {www}; }}
}}
"""


def program() -> str:
    """Path of nginx; RackError if it is not installed."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if found is None:
        raise RackError("nginx is not installed: `scripts/setup.sh --trods` installs it")
    return found


def command(folder: Path, www: Path, *listen: str, certificate: tuple[Path, Path] | None = None) -> list[str]:
    """Runs one nginx process that serves `www` at each of `listen` (ADDRESS:PORT, [ADDRESS]:PORT).

    `certificate`: a certificate and its key, for those of `listen` that end in " ssl". Killing the process by its id
    ends all of nginx.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    files = zip(("ssl_certificate", "ssl_certificate_key"), certificate or (), strict=False)
    settings = {
        "listen": " ".join(f"listen {where};" for where in listen),
        "certificate": "".join(f"  {word} {file};\n" for word, file in files),
    }
    config.write_text(CONFIG.format(folder=folder, www=www, **settings))
    return [program(), "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
