#!/bin/sh
# Installs a C library of the workspace: header, shared and static library, pkg-config file.
#
#   scripts/install-c.sh FOLDER HEADER LIBRARY PACKAGE [FOLDER OF THE LIBRARY]       target/release unless named
#
# FOLDER has include/HEADER.h and PACKAGE.pc.in; the libraries are libLIBRARY.so and .a.
# PREFIX (/usr/local), LIBDIR ($PREFIX/lib) and DESTDIR (empty; put in front of all paths, for packages).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1 header=$2 library=lib$3 package=$4 built=${5:-$root/target/release}
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
to=${DESTDIR:-}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
[ -n "$version" ] || { echo "no version in Cargo.toml" >&2; exit 1; }

install -d "$to$prefix/include" "$to$libdir/pkgconfig"
install -m 644 "$folder/include/$header.h" "$to$prefix/include/$header.h"
install -m 755 "$built/$library.so" "$to$libdir/$library.so.$version"
ln -sf "$library.so.$version" "$to$libdir/$library.so.0"
ln -sf "$library.so.0" "$to$libdir/$library.so"
install -m 644 "$built/$library.a" "$to$libdir/$library.a"
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@version@|$version|" "$folder/$package.pc.in" \
  >"$to$libdir/pkgconfig/$package.pc"
chmod 644 "$to$libdir/pkgconfig/$package.pc"
