#!/usr/bin/env bash
# Installs what the commands of the Makefile need: Debian packages, Rust where it is missing, and the Python environment
# in .venv from requirements.lock. A second run skips what is already installed.
# Usage: scripts/setup.sh [--test] [--deb] [--browser] [--trods] [--audio] [--bench] [--no-apt]; --test adds the packages of the
# tests, --deb those that check packages, --browser the demos' browser, --trods the servers and the store of demo-trods
# and demo-tls, --audio the source of demo-cm, --bench the servers that the benches compare with.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.9.5
# The machine decides whom it trusts, as it does for apt and pip.
export UV_NATIVE_TLS=1
# Why each: mininet (demos), nftables (keeps our segments from the kernel's TCP), ethtool (offloads),
# conntrack (wire plausibility tests), clang (compiles the BPF programs), libelf-dev and zlib1g-dev (what libbpf, which loads
# them, links), python3-dev and build-essential (netifaces has no wheel; ptf wants it).
PACKAGES=(build-essential clang curl ethtool iproute2 iputils-ping libelf-dev mininet nftables pkgconf procps python3-dev python3-venv tcpdump wget zlib1g-dev)

# aria2: a client; apache2-utils, nginx-light: HTTP side by side; apache2-bin, caddy, lighttpd: web servers behind TRODS; chromium: the controller's page is clicked; etcd-server: two controllers; ffmpeg: audio;
# libfaketime: clocks that jump; lintian: the packages; memcached: where records of plain connections are kept; openssh-server: sessions
# that outlive upgrades; tshark: the Wireshark dissector.
TEST_PACKAGES=(apache2-bin apache2-utils aria2 caddy chromium etcd-server ffmpeg libfaketime lighttpd lintian memcached nginx-light openssh-server tshark)
[[ " $* " == *" --test "* ]] && PACKAGES+=("${TEST_PACKAGES[@]}")
[[ " $* " == *" --deb "* ]] && PACKAGES+=(lintian)
[[ " $* " == *" --browser "* ]] && PACKAGES+=(chromium)
[[ " $* " == *" --trods "* ]] && PACKAGES+=(memcached nginx-light openssh-server openssl)
[[ " $* " == *" --audio "* ]] && PACKAGES+=(ffmpeg)
[[ " $* " == *" --bench "* ]] && PACKAGES+=(knot nginx-light nsd)

say() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }

as_root=()
# apt-get, after whoever else is at it: DPkg::Lock::Timeout waits for dpkg alone, not for the lists and the archives.
apt() {
  local log=build/apt.log patience=$((SECONDS + 600))
  until "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 \
    apt-get -qq -o DPkg::Lock::Timeout=600 "$@" >"$log" 2>&1; do
    if ((SECONDS > patience)) || ! grep -qE 'Could not get lock|Unable to (acquire|lock)' "$log"; then
      cat "$log" >&2
      say "apt-get $1 failed: its output stands above"
      exit 1
    fi
    sleep 2
  done
}

mkdir -p build
missing=()
for package in "${PACKAGES[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if ((${#missing[@]})) && [[ " $* " != *" --no-apt "* ]]; then
  say "installing Debian packages: ${missing[*]}"
  if ((EUID != 0)); then
    say "root is needed once, to install them"
    as_root=(sudo)
  fi
  apt update
  # No recommends: mininet would pull in Open vSwitch and start its daemon. No server is started: not by systemd
  # (SYSTEMD_OFFLINE), nor by what asks the policy of the machine, which is ours where it has none.
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
  fi
  apt install -y --no-install-recommends "${missing[@]}"
fi

# rustup's own directory is looked into even if the login shell does not know it yet (the Makefile does so too).
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
floor=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
# Runs cargo: rustup leaves a file called cargo even where the toolchain is missing. In this folder cargo is the pinned one.
rust_is_enough() {
  local version
  version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
  [[ -n $version && $(printf '%s\n' "$floor" "$version" | sort -V | head -n 1) == "$floor" ]]
}
if ! command -v cargo >/dev/null; then
  say "installing Rust with rustup into ${RUSTUP_HOME:-$HOME/.rustup} (Debian's own is too old)"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
    | sh -s -- -y -q --no-modify-path --default-toolchain none || true
fi
if ! rust_is_enough && command -v rustup >/dev/null; then
  say "installing Rust $pinned with rustup"
  rustup -q toolchain install "$pinned" --no-self-update --profile minimal --component clippy --component rustfmt || true
  # Without a way to rustup's server, the stable release that is installed serves, if it is new enough.
  if ! rust_is_enough && RUSTUP_TOOLCHAIN=stable rust_is_enough; then
    say "Rust $pinned cannot be installed; this folder uses $(RUSTUP_TOOLCHAIN=stable cargo --version)"
    rustup -q override set stable
  fi
fi
rust_is_enough || {
  say "there is no Rust $floor or newer ($(cargo --version 2>&1 | head -n 1)): install it by hand, then run this again"
  exit 1
}
# What `make check` runs.
for component in clippy rustfmt; do
  if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
    say "installing $component"
    rustup -q component add "$component" || { say "cargo has no $component, and rustup cannot install it"; exit 1; }
  fi
done
# What rivulet-tiny is built for (host/tiny); without it the program is not built, and its tests are skipped.
if [[ ! -d $(rustc --print target-libdir --target x86_64-unknown-none) ]]; then
  say "installing Rust's target x86_64-unknown-none"
  rustup -q target add x86_64-unknown-none || say "rustup cannot install it: rivulet-tiny is not built"
fi

stamp=.venv/.requirements.sha256
want=$(sha256sum requirements.lock pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ ! -f $stamp || $(cat "$stamp") != "$want" ]]; then
  say "making the Python environment in .venv (system Python: it alone sees Mininet)"
  [[ -x build/uv/bin/uv ]] || { /usr/bin/python3 -m venv build/uv && build/uv/bin/pip install -q "uv==$UV_VERSION"; }
  [[ -x .venv/bin/python ]] || build/uv/bin/uv venv -q --python /usr/bin/python3 --system-site-packages .venv
  build/uv/bin/uv pip sync -q --python .venv/bin/python --require-hashes requirements.lock
  build/uv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
  echo "$want" >"$stamp"
fi

# Bindings of the agent channel: generated, so not committed.
proto=controller/proto/rivulet/agent/v1/agent.proto
out=controller/rivulet_controller/pb
if [[ ! -f $out/__init__.py || $proto -nt $out/__init__.py ]]; then
  say "generating the bindings of the agent channel"
  mkdir -p "$out"
  .venv/bin/python -m grpc_tools.protoc -Icontroller/proto --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" "$proto"
  # protoc imports by the proto's path; ours lives in a package.
  sed -i 's/^from rivulet\./from rivulet_controller.pb.rivulet./' "$out"/rivulet/agent/v1/*.py
  find "$out" -type d -exec touch {}/__init__.py \;
fi
