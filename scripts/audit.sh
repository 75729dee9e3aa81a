#!/usr/bin/env bash
# Audits licences, sources and known vulnerabilities of all dependencies: cargo-deny by deny.toml, pip-audit by
# requirements.lock. The advisory lists come from the network (GitHub, PyPI). Without a network, ADVISORIES names a folder
# with copies of the lists (scripts/advisories.py).
# Exit code: 0, everything was checked and nothing found; 1 and others, something was found or the audit failed; 3, nothing
# was found, but lists could not be fetched: the last lines name what was not checked.
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_DENY_VERSION=0.20.2
PIP_AUDIT_VERSION=2.9.0
CARGO=${CARGO:-cargo}
missed=()

say() { printf '\033[1m[audit]\033[0m %s\n' "$*"; }

export PATH="$PWD/build/tools/bin:$PATH"
if ! command -v cargo-deny >/dev/null; then
  say "installing cargo-deny $CARGO_DENY_VERSION into build/tools, once; this takes some minutes"
  CARGO_TARGET_DIR=build/tools/target "$CARGO" install -q --locked "cargo-deny@$CARGO_DENY_VERSION" --root build/tools
  rm -rf build/tools/target
fi
say "Rust: bans, licences, sources"
cargo-deny --log-level error check --hide-inclusion-graph bans licenses sources
say "Rust: advisories"
# Fetches the database first, to tell a failed fetch from advisories that were found.
if timeout 120 cargo-deny --log-level error fetch db >/dev/null 2>build/audit-db.log; then
  cargo-deny --log-level error check advisories
else
  # What git says, if it said something: the line before it is long and holds no reason.
  reason=$(grep -m1 -o 'fatal: .*' build/audit-db.log || grep -m1 -o 'failed to .*' build/audit-db.log || echo 'the database cannot be fetched')
  missed+=("Rust advisories: ${reason:0:150}")
fi

if [[ ! -x build/audit/bin/pip-audit ]]; then
  say "installing pip-audit $PIP_AUDIT_VERSION into build/audit, once"
  /usr/bin/python3 -m venv build/audit
  build/audit/bin/pip install -q "pip-audit==$PIP_AUDIT_VERSION"
fi
say "Python: advisories, by requirements.lock"
status=0
timeout 300 build/audit/bin/pip-audit --progress-spinner off --timeout 15 --disable-pip --require-hashes -r requirements.lock \
  >build/audit-python.log 2>&1 || status=$?
# An index without the JSON API knows no advisories: pip-audit then skips every package and is content.
skipped=$(grep -c 'could not be audited' build/audit-python.log || true)
if ((status == 0 && skipped > 0)); then
  missed+=("Python advisories: the package index has none for $skipped packages")
elif ((status == 0)); then
  tail -n 3 build/audit-python.log
elif grep -q 'Name .*Version .*ID' build/audit-python.log; then
  cat build/audit-python.log
  exit 1
else
  missed+=("Python advisories: $(tail -n 1 build/audit-python.log | cut -c1-150)")
fi
say "Python: licences"
# Licences of imported packages must be compatible with Apache-2.0; scapy and ptf are for tests, in files under GPL-2.0.
.venv/bin/python scripts/licences.py

if ((${#missed[@]})) && [[ -n ${ADVISORIES:-} ]]; then
  say "advisories by the copies in $ADVISORIES"
  copied=0
  .venv/bin/python scripts/advisories.py "$ADVISORIES" || copied=$?
  ((copied == 1)) && exit 1
fi
if ((${#missed[@]})); then
  for what in "${missed[@]}"; do say "not checked: $what"; done
  exit 3
fi
