#!/bin/sh
# Installs the Congestion Manager's C library: header, shared and static library, pkg-config file.
#
#   host/libcm/install.sh [FOLDER OF THE LIBRARY]       target/release unless named
#
# PREFIX (/usr/local), LIBDIR ($PREFIX/lib) and DESTDIR (empty; put in front of all paths, for packages).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
built=${1:-$here/../../target/release}
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
to=${DESTDIR:-}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
[ -n "$version" ] || { echo "no version in Cargo.toml" >&2; exit 1; }

install -d "$to$prefix/include" "$to$libdir/pkgconfig"
install -m 644 "$here/include/cm.h" "$to$prefix/include/cm.h"
install -m 755 "$built/libcm.so" "$to$libdir/libcm.so.$version"
ln -sf "libcm.so.$version" "$to$libdir/libcm.so.0"
ln -sf libcm.so.0 "$to$libdir/libcm.so"
install -m 644 "$built/libcm.a" "$to$libdir/libcm.a"
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@version@|$version|" "$here/rivulet-cm.pc.in" \
  >"$to$libdir/pkgconfig/rivulet-cm.pc"
chmod 644 "$to$libdir/pkgconfig/rivulet-cm.pc"
