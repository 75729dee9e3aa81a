# The Congestion Manager's C library (host/libcm). PREFIX, LIBDIR and DESTDIR as scripts/install-c.sh says.

.PHONY: libcm install-libcm
libcm: ## the C library of the Congestion Manager's calls (target/release)
	$(CARGO) build --release --locked -p rivulet-libcm

install-libcm: libcm ## header, libraries and pkg-config file: PREFIX=/usr/local DESTDIR=
	host/libcm/install.sh
