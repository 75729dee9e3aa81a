#!/bin/sh
# Installs the C library: header, shared and static library, pkg-config file.
#
#   host/capi/install.sh [FOLDER OF THE LIBRARY]       target/release unless named
#
# PREFIX, LIBDIR and DESTDIR as scripts/install-c.sh says.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../../scripts/install-c.sh" "$here" rivulet rivulet_msk rivulet "$@"
