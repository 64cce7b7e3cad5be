/* tools/comfy-handoff/card.h - which physical card a ComfyUI of this host computes on.
 *
 * ComfyUI tells a number, and that counts what its process sees: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave cards out and change
 * their order. So the process that listens at its port is looked up, and ebbtide-stage-cuda lists the cards under the same settings: the
 * driver itself says which one that number is. Threads: one.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The UUID of card `index` as the process sees it that listens at `port` here. False, and "": no such process, not ours to look at, or
 * nobody to ask about its cards. */
bool card_uuid_find(unsigned port, uint32_t index, char *uuid, size_t capacity);
