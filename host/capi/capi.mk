# The C library (host/capi). PREFIX, LIBDIR and DESTDIR as scripts/install-c.sh says.

.PHONY: capi install-capi
capi: protos ## the C library of the minisocket API (target/release)
	$(CARGO) build --release --locked -p rivulet-capi

install-capi: capi ## header, libraries and pkg-config file: PREFIX=/usr/local DESTDIR=
	host/capi/install.sh
