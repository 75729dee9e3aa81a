#!/bin/sh
# Installs the C library: header, shared and static library, pkg-config file.
#
#   host/capi/install.sh [FOLDER OF THE LIBRARY]       target/release unless named
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
install -m 644 "$here/include/rivulet.h" "$to$prefix/include/rivulet.h"
install -m 755 "$built/librivulet_msk.so" "$to$libdir/librivulet_msk.so.$version"
ln -sf "librivulet_msk.so.$version" "$to$libdir/librivulet_msk.so.0"
ln -sf librivulet_msk.so.0 "$to$libdir/librivulet_msk.so"
install -m 644 "$built/librivulet_msk.a" "$to$libdir/librivulet_msk.a"
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@version@|$version|" "$here/rivulet.pc.in" \
  >"$to$libdir/pkgconfig/rivulet.pc"
chmod 644 "$to$libdir/pkgconfig/rivulet.pc"
