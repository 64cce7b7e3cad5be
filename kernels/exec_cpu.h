/* kernels/exec_cpu.h - internal to the room: what exec_cpu.c and sync_cpu.c know of each other. Contracts: exec.h. */
#pragma once
#include "kernels/exec.h"

/* Makes wake_fd readable; called by stream threads after what the control thread will look at is stored. */
void exec_cpu_wake(struct exec *e);
struct exec *exec_cpu_of(const struct exec_stream *s);
bool exec_cpu_capturing(const struct exec_stream *s);

int sync_cpu_event_open(struct exec *e, struct exec_event **event, struct error *err);
void sync_cpu_event_close(struct exec_event *event);
int sync_cpu_event_record(struct exec_event *event, struct exec_stream *s);
int sync_cpu_event_query(struct exec_event *event);
int sync_cpu_stream_wait(struct exec_stream *s, struct exec_event *event);
int sync_cpu_doorbell_open(struct exec *e, struct exec_doorbell **bell, struct error *err);
void sync_cpu_doorbell_close(struct exec_doorbell *bell);
int sync_cpu_doorbell_ring(struct exec_doorbell *bell, struct exec_stream *s, uint64_t value);
uint64_t sync_cpu_doorbell_read(const struct exec_doorbell *bell);
