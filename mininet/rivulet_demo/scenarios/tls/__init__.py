"""Kills nginx, `rivulet tls` and the agent of the replica that holds an HTTPS download, cuts its link and drains it.

The replicas are unmodified nginx with plain HTTP, `rivulet tls` and `rivulet agent --plain-tcp`; plain curl and
headless Chromium run no Rivulet code (docs/tls.md). Each harm hits the replica that holds curl's connection at that
time, is repaired, and the next harm follows when all replicas are live. A second curl fetches from the same nginx,
which ends TLS itself there; it begins at the replica that is harmed first. The captures come with the keys that decrypt
them. RATE defaults to 12 Mb/s, and the file is large enough for all harms: SIZE, but at least 60 seconds' worth.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rivulet_demo import browse
from rivulet_lab import RackError, certificate

from ...harms import BROWSER, FILE, SERVICE, Scene, Site, fit, furnish, opening, play, summary
from ...report import LABELS, TCP, show
from ...scenario import Parameters, console
from ...spec import SERVICE_V4, SERVICE_V6
from .replicas import HARMS, NGINX_PORT, PLAIN, TlsReplicas

WORDS = __doc__ or ""

HTTPS = "https"
NAMES = LABELS | {HTTPS: "plain curl, https by rivulet tls", TCP: "plain curl, https by nginx itself"}
RATE_MBIT = 12.0
"""Default rate of the links. Whole packets are captured, to be decrypted later: 12 Mb/s for a minute are 90 MB."""
SHORTEST_S = 60.0
"""Default duration of the download, and its minimum: five harms, each until all replicas are live."""


def run(values: Parameters, options: argparse.Namespace, with_browser: bool = True) -> int:
    """Runs the scenario; 0 if the one connection survived every harm and Chromium's rounds were complete."""
    values = fit(values, options.rate, options.size, RATE_MBIT, SHORTEST_S)
    www = values.out / "www-tls"
    sha256 = furnish(www, values)
    folder = values.out / "tls"
    folder.mkdir(parents=True, exist_ok=True)
    pem, key = certificate.self_signed(folder, SERVICE_V4, SERVICE_V6)
    keys = {client: values.out / f"tls-{client}.keys" for client in (HTTPS, BROWSER, TCP)}
    for old in keys.values():
        old.unlink(missing_ok=True)
    no_browser = "" if with_browser else "it was not wanted"
    try:
        browse.chromium()
    except RackError as error:
        no_browser = str(error)
    trust = f"--ignore-certificate-errors-spki-list={certificate.key_hash(pem)}"
    files = {"certificate": str(pem), "key": str(key)}
    scene = Scene(
        "tls",
        Site(HTTPS, "c1", f"https://{SERVICE_V4}", _environment(pem, keys[HTTPS])),
        Site(TCP, "c3", f"https://{SERVICE_V4}:{NGINX_PORT}", _environment(pem, keys[TCP]), once=True),
        HARMS,
        TlsReplicas,
        {
            "services": ((SERVICE, 443, "trods"), (f"{SERVICE}-nginx", NGINX_PORT, "kernel")),
            "tls": {SERVICE: {"certificates": [files], "server": PLAIN}},
        },
        browser=None if no_browser else (trust, f"--ssl-key-log-file={keys[BROWSER]}"),
        snap_bytes=0,
    )
    console.print(f"  plain curl: curl --cacert {pem} {scene.held.url}/{FILE}", soft_wrap=True)
    picture = values.out / "tls-browser.png"
    report = play(scene, values, www, sha256, picture)
    for client in (HTTPS, TCP):
        report["clients"][client]["keys"] = keys[client].name
    words, missed = summary(scene, report)
    if no_browser:
        words.append(f"Chromium did not run: {no_browser}.")
    words += [f"NOT as expected: {what}." for what in missed]
    words.append(_how_to_read(values.out, keys[HTTPS], BROWSER in scene.hosts))
    title = "one HTTPS connection; the replica that holds it is harmed five times"
    first = opening(values, "nginx behind rivulet tls", len(report["harms"]))
    shown = picture if scene.browser is not None else None
    return show(report, values, title, first, words, shown, NAMES) or int(bool(missed))


def _environment(pem: Path, keys: Path) -> str:
    """Command that has curl trust a certificate and write the connection's keys to a file."""
    return shlex.join(["env", f"CURL_CA_BUNDLE={pem}", f"SSLKEYLOGFILE={keys}"])


def _how_to_read(folder: Path, keys: Path, with_browser: bool) -> str:
    """How to decrypt the captures."""
    also = " (those of the browser are tls-browser.pcap and tls-browser.keys)" if with_browser else ""
    return (
        f"The captures decrypt with the keys of their client{also}; the same keys fit what each replica sent:"
        f" cd {folder} && tshark -r tls-{HTTPS}.pcap -o tls.keylog_file:{keys.name} -o"
        " tcp.reassemble_out_of_order:TRUE -Y http. In Wireshark: Edit, Preferences, Protocols; TLS: the keys as"
        " (Pre)-Master-Secret log filename; TCP: reassemble out-of-order segments."
    )
