/* stages/link_address.h - the addresses of socket links: "unix:NAME" (abstract, this machine only) and "tcp:HOST:PORT".
 */
#pragma once
#include "stages/link.h"

/* 32 random hex digits that only the coordinator and the two stages learn. */
int link_key_make(char key[LINK_KEY_MAX], struct error *err);
/* A non-blocking listening socket; host NULL: an abstract unix name, else a free TCP port there. *fd stays the caller's also on
 * failure (-1, or open). EBB_EIO, EBB_ENOENT (unknown host). */
int link_address_listen(const char *host, char address[LINK_ADDRESS_MAX], int *fd,
                        struct error *err);
/* A non-blocking socket on its way to `address`. EBB_EINVAL, EBB_ENOENT, EBB_EPEER (nobody listens). */
int link_address_dial(const char *address, int *fd, struct error *err);
