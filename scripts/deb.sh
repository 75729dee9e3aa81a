#!/usr/bin/env bash
# Makes the Debian packages from the output of `make build` and `make setup`: build/deb/*.deb.
#   rivulet             the binaries, the compiled P4 program, units of the switch, of a replica, of its agent and of the
#                       Congestion Manager
#   rivulet-controller  the control plane, with the Python packages that it was tested with
# Usage: scripts/deb.sh [--quick] [--out FOLDER] [FOLDER OF THE BINARIES]; --quick compresses little, for tests.
# Errors and warnings of lintian fail; without lintian the packages are made, and the exit code is 3.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

out=build/deb level=6
while [[ ${1:-} == --* ]]; do
  case $1 in
    --quick) level=0 ;;
    --out) out=$2 && shift ;;
    *) echo "deb.sh: $1?" >&2 && exit 2 ;;
  esac
  shift
done
bin=${1:-target/release}
version=$(python3 scripts/version.py)
arch=$(dpkg --print-architecture)
maintainer=${DEB_MAINTAINER:-Rivulet maintainers <maintainers@rivulet.invalid>}
epoch=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH=$epoch
rm -rf "$out" && mkdir -p "$out"

say() { printf '\033[1m[deb]\033[0m %s\n' "$*"; }

# Arguments: name; control fields on stdin. The package's tree is in $out/$name.
package() {
  local name=$1 root=$out/$1 size
  local doc=$root/usr/share/doc/$name
  install -d "$doc" "$root/DEBIAN"
  install -m 644 packaging/copyright "$doc/copyright"
  install -D -m 644 "packaging/$name.lintian-overrides" "$root/usr/share/lintian/overrides/$name"
  { printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n -- %s  %s\n' \
    "$name" "$version" "$maintainer" "$(date -u -R -d "@$epoch")"; } | gzip -9n >"$doc/changelog.gz"
  find "$root" -depth -exec touch -h -d "@$epoch" {} +
  size=$(du -k -s --apparent-size "$root" | cut -f1)
  { printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %s\nSection: net\nPriority: optional\n' \
    "$name" "$version" "$arch" "$maintainer" "$size"; cat; } >"$root/DEBIAN/control"
  (cd "$root" && find etc -type f -printf '/%p\n' 2>/dev/null | sort) >"$root/DEBIAN/conffiles" || true
  [[ -s $root/DEBIAN/conffiles ]] || rm "$root/DEBIAN/conffiles"
  (cd "$root" && find . -path ./DEBIAN -prune -o -type f -print0 | sort -z | xargs -0 md5sum | sed 's|  \./|  |') >"$root/DEBIAN/md5sums"
  local script
  for script in postinst prerm postrm; do
    [[ -f packaging/$name.$script ]] && install -m 755 "packaging/$name.$script" "$root/DEBIAN/$script"
  done
  dpkg-deb --root-owner-group --build -Zxz -z$level "$root" "$out/${name}_${version}_$arch.deb" >/dev/null
  say "$out/${name}_${version}_$arch.deb, $(du -h "$out/${name}_${version}_$arch.deb" | cut -f1)"
}

# Installs the manual pages of programs and the shells' completions of the last one. Arguments: root of the package, pages.
manuals() {
  local root=$1 page; shift
  for page in "$@"; do
    install -d "$root/usr/share/man/man${page##*.}"
    gzip -9nc "$reference/man/$page" >"$root/usr/share/man/man${page##*.}/$page.gz"
  done
  page=${page%.*}
  install -D -m 644 "$reference/completions/bash/$page" "$root/usr/share/bash-completion/completions/$page"
  install -D -m 644 "$reference/completions/zsh/_$page" "$root/usr/share/zsh/vendor-completions/_$page"
  install -D -m 644 "$reference/completions/fish/$page.fish" "$root/usr/share/fish/vendor_completions.d/$page.fish"
}

depends() { # shared libraries of binaries, as Debian dependencies
  local scratch line files=()
  scratch=$(mktemp -d)
  mkdir "$scratch/debian" && printf 'Source: rivulet\n\nPackage: rivulet\nArchitecture: any\n' >"$scratch/debian/control"
  for f in "$@"; do files+=("$(realpath "$f")"); done
  line=$(cd "$scratch" && dpkg-shlibdeps -O "${files[@]}" 2>errors | sed -n 's/^shlibs:Depends=//p') || true
  [[ -n $line ]] || { cat "$scratch/errors" >&2; say "dpkg-shlibdeps names no library that $1 needs" >&2; exit 1; }
  rm -rf "$scratch"
  printf '%s' "$line"
}

reference=$out/reference
RIVULET_BIN=$(realpath "$bin") .venv/bin/python scripts/reference "$reference"

root=$out/rivulet
install -d "$root"/usr/bin "$root"/usr/lib/rivulet "$root"/usr/share/rivulet/pipeline \
  "$root"/lib/systemd/system "$root"/usr/share/doc/rivulet/examples "$root"/etc/rivulet
for program in rivulet rivulet-switch rivulet-wire cm-udp rivulet-cm-apps; do
  install "$bin/$program" "$root/usr/bin/$program"
  strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/$program"
done
install -m 644 "$bin/librivulet_shim.so" "$root/usr/lib/rivulet/"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/lib/rivulet/librivulet_shim.so"
install -m 644 p4src/build/rivulet.json p4src/build/rivulet.p4info.txtpb "$root/usr/share/rivulet/pipeline/"
install -d "$root/usr/share/rivulet/pipeline/host"
install -m 644 p4src/build/host/rivulet.json p4src/build/host/rivulet.p4info.txtpb "$root/usr/share/rivulet/pipeline/host/"
install -m 644 host/wireshark/rivulet.lua host/wireshark/rivulet-plain.lua "$root/usr/share/rivulet/"
manuals "$root" rivulet-switch.1 rivulet-wire.1 cm-udp.1 rivulet-cm-apps.1 rivulet.1
for unit in switch replica agent tls cm; do install -m 644 "packaging/systemd/rivulet-$unit.service" "$root/lib/systemd/system/"; done
install -m 644 packaging/etc/*.env "$root/usr/share/doc/rivulet/examples/"
for page in operating troubleshooting; do gzip -9nc "docs/$page.md" >"$root/usr/share/doc/rivulet/$page.md.gz"; done
rmdir "$root/etc/rivulet" "$root/etc"
libraries=$(depends "$root"/usr/bin/* "$root"/usr/lib/rivulet/*.so)
package rivulet <<EOF
Depends: $libraries, adduser
Recommends: nftables
Suggests: rivulet-controller
Description: server failover without state, for connections that do not break
 Rivulet's servers keep no state of a connection: the client carries it, sealed,
 in every packet (the Trickles transport), so any packet may go to any replica,
 and kill -9 of a server breaks nothing. This package has the server and client,
 the preload library that brings unmodified programs, the P4 program of the
 switch, a switch that runs it, and the Congestion Manager.
EOF

root=$out/rivulet-controller
install -d "$root"/usr/bin "$root"/usr/lib/rivulet/controller "$root"/usr/lib/rivulet/p4src \
  "$root"/lib/systemd/system "$root"/usr/share/doc/rivulet-controller/examples
cp -r controller/rivulet_controller "$root/usr/lib/rivulet/controller/"
find "$root" -name __pycache__ -prune -exec rm -rf {} +
.venv/bin/python scripts/vendor.py "$root/usr/lib/rivulet/python" >"$root/usr/share/doc/rivulet-controller/python-packages"
find "$root/usr/lib/rivulet/python" -name '*.so' -exec strip --strip-unneeded {} +
find "$root/usr/lib/rivulet/python" -type f -exec chmod 644 {} +
# Modules are imported, not run: remove first lines that name an interpreter.
find "$root/usr/lib/rivulet/python" -name '*.py' -exec sed -i '1{/^#!/d}' {} +
# The controller looks for the P4 program beside its own folder; the other package contains it.
ln -s ../../../share/rivulet/pipeline "$root/usr/lib/rivulet/p4src/build"
for entry in rivulet-controller:daemon rivuletctl:cli; do
  cat >"$root/usr/bin/${entry%%:*}" <<EOF
#!/usr/bin/python3 -I
import sys

sys.path[:0] = ["/usr/lib/rivulet/controller", "/usr/lib/rivulet/python"]
sys.argv[0] = "${entry%%:*}"

from rivulet_controller.${entry##*:} import main  # noqa: E402

sys.exit(main())
EOF
  chmod 755 "$root/usr/bin/${entry%%:*}"
done
manuals "$root" rivulet-rack.5 rivulet-controller.1 rivuletctl.1
install -m 644 packaging/systemd/rivulet-controller.service "$root/lib/systemd/system/"
install -m 644 controller/examples/rack.yaml "$root/usr/share/doc/rivulet-controller/examples/"
python=$(.venv/bin/python -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
next=$(.venv/bin/python -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1] + 1}")')
libraries=$(find "$root" -name '*.so' -print0 | { mapfile -d '' -t files; depends "${files[@]}"; })
package rivulet-controller <<EOF
Depends: python3 (>= $python), python3 (<< $next), $libraries, adduser, rivulet (= $version)
Description: control plane of Rivulet
 Turns one description of a rack into entries of its P4 switches and
 updates of its replicas, makes and rotates keys, and shows what is going
 on. It is never on the path of a packet.
EOF
say "install: apt-get install $(realpath "$out")/rivulet_${version}_$arch.deb $(realpath "$out")/rivulet-controller_${version}_$arch.deb"
if ! command -v lintian >/dev/null; then
  say "not checked: lintian is not installed (scripts/setup.sh --test installs it)"
  exit 3
fi
say "lintian: errors and warnings"
lintian --allow-root --fail-on error,warning "$out"/*.deb
