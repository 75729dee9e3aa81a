// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* trods.c for kernels that take over connections from handshakes that a program made (ts.h). */
#define HANDSHAKES
#include "trods.c"
