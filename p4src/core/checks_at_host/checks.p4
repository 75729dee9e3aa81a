// SPDX-License-Identifier: Apache-2.0
// No check of Rivulet requests: the replica makes all of them, as it does for a request without the
// "checked" mark, and this program never sets that mark.
#ifndef RIVULET_HOST_CHECKS_P4
#define RIVULET_HOST_CHECKS_P4

#include "../metadata.p4"

control Checks(in headers_t hdr, inout metadata_t meta) {
    apply { }
}

#endif
