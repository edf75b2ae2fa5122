/* A stand-in for libnccl with the same ABI, for machines without a GPU: "device" pointers are host
 * pointers, streams are ignored, and every call finishes before it returns.
 *
 * All ranks of a communicator are processes of one host.  They share one file in /dev/shm: a header
 * (arrivals, abort flag) and a byte ring for each ordered pair of ranks.  Calls of a group are
 * collected, and GroupEnd moves them all forward in turns, as NCCL does, so that a group never
 * deadlocks by the order of its calls.  What real NCCL would leave hanging (a receive that nobody
 * sends) ends with an error after FAKE_NCCL_TIMEOUT_MS; what it would not notice (sizes or types that
 * differ between the two sides) is an error at once.  FAKE_NCCL_VERSION sets the version code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { RING = 1 << 17, MAX_OPS = 1 << 16, MAX_RANKS = 64 };

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { _Atomic uint64_t written, read; char data[RING]; } Ring;
typedef struct { _Atomic int arrived, aborted; char pad[56]; Ring rings[]; } Shared;
typedef struct { int nranks, rank; Shared *shared; size_t size; } Comm;
typedef struct { uint64_t bytes; int32_t type, magic; } Header;
/* One send or receive under way: `done` counts header and data bytes together. */
typedef struct { int sending, peer, type; char *data; uint64_t bytes, done; Comm *comm; Header header; } Op;

static __thread char last_error[256];
static __thread int depth, group_error;
static __thread Op *ops;
static __thread int nops;

static int fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return code;
}

static int type_size(int type) {
  static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type > 11 ? 0 : sizes[type];
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double limit_seconds(void) {
  const char *text = getenv("FAKE_NCCL_TIMEOUT_MS");
  return (text ? atof(text) : 20000) / 1000;
}

int ncclGetVersion(int *version) {
  const char *text = getenv("FAKE_NCCL_VERSION");
  if (!version) return fail(ARGUMENT, "version is NULL");
  *version = text ? atoi(text) : 22304;
  return OK;
}

const char *ncclGetErrorString(int code) {
  static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                "invalid argument", "invalid usage", "remote process exited or there was an error"};
  return code < 0 || code > REMOTE ? "unknown result code" : texts[code];
}

const char *ncclGetLastError(void *comm) { (void)comm; return last_error; }

int ncclGetUniqueId(ncclUniqueId *id) {
  unsigned long long word;
  if (getrandom(&word, sizeof word, 0) != sizeof word) return fail(SYSTEM, "no random bytes");
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-%016llx", word);
  return OK;
}

int ncclCommInitRank(void **result, int nranks, ncclUniqueId id, int rank) {
  if (nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
    return fail(ARGUMENT, "rank %d of %d is out of range", rank, nranks);
  size_t size = sizeof(Shared) + sizeof(Ring) * (size_t)nranks * (size_t)nranks;
  int file = open(id.internal, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, (off_t)size)) return fail(SYSTEM, "cannot make %s", id.internal);
  Shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shared == MAP_FAILED) return fail(SYSTEM, "cannot map %s", id.internal);
  int arrived = atomic_fetch_add(&shared->arrived, 1) + 1;
  for (double end = now() + limit_seconds(); arrived < nranks; arrived = atomic_load(&shared->arrived)) {
    if (now() > end) {
      unlink(id.internal);
      return fail(SYSTEM, "only %d of %d ranks came", arrived, nranks);
    }
    usleep(200);
  }
  unlink(id.internal); /* everybody has it mapped: nothing is left behind, however the ranks end */
  Comm *comm = malloc(sizeof *comm);
  *comm = (Comm){nranks, rank, shared, size};
  *result = comm;
  return OK;
}

int ncclCommDestroy(Comm *comm) {
  if (!comm) return fail(ARGUMENT, "comm is NULL");
  munmap(comm->shared, comm->size);
  free(comm);
  return OK;
}

int ncclCommAbort(Comm *comm) {
  if (!comm) return fail(ARGUMENT, "comm is NULL");
  atomic_store(&comm->shared->aborted, 1);
  return ncclCommDestroy(comm);
}

int ncclCommGetAsyncError(Comm *comm, int *code) {
  if (!comm || !code) return fail(ARGUMENT, "a pointer is NULL");
  *code = atomic_load(&comm->shared->aborted) ? REMOTE : OK;
  return OK;
}

/* Move `count` bytes at most between the ring and `bytes`; returns how many went. */
static uint64_t transfer(Ring *ring, int sending, char *bytes, uint64_t count) {
  uint64_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
  uint64_t room = sending ? RING - (written - read) : written - read;
  uint64_t at = (sending ? written : read) % RING;
  if (count > room) count = room;
  if (count > RING - at) count = RING - at;
  if (sending) {
    memcpy(ring->data + at, bytes, count);
    atomic_store(&ring->written, written + count);
  } else {
    memcpy(bytes, ring->data + at, count);
    atomic_store(&ring->read, read + count);
  }
  return count;
}

/* One turn of one call; returns an error code, and adds what moved to `moved`. */
static int progress(Op *op, uint64_t *moved) {
  int me = op->comm->rank, source = op->sending ? me : op->peer, target = op->sending ? op->peer : me;
  Ring *ring = &op->comm->shared->rings[source * op->comm->nranks + target];
  uint64_t went = 0;
  if (op->done < sizeof(Header)) {
    went = transfer(ring, op->sending, (char *)&op->header + op->done, sizeof(Header) - op->done);
    op->done += went;
    if (op->done == sizeof(Header) && !op->sending &&
        (op->header.bytes != op->bytes || op->header.type != op->type))
      return fail(USAGE, "rank %d waits for %llu bytes of type %d from rank %d, which sends %llu of type %d", me,
                  (unsigned long long)op->bytes, op->type, op->peer, (unsigned long long)op->header.bytes,
                  op->header.type);
  }
  if (op->done >= sizeof(Header)) {
    uint64_t at = op->done - sizeof(Header), part = transfer(ring, op->sending, op->data + at, op->bytes - at);
    op->done += part;
    went += part;
  }
  *moved += went;
  return OK;
}

static int finished(const Op *op) { return op->done == sizeof(Header) + op->bytes; }

static int run_group(void) {
  double end = now() + limit_seconds();
  for (int left = nops; left > 0;) {
    uint64_t moved = 0;
    char busy[2][MAX_RANKS] = {{0}}; /* an earlier call to this peer, in this direction, is unfinished */
    left = 0;
    for (int i = 0; i < nops; i++) {
      Op *op = &ops[i];
      if (finished(op)) continue;
      left++;
      if (busy[op->sending][op->peer]) continue;
      int code = progress(op, &moved);
      if (code) return code;
      if (!finished(op)) busy[op->sending][op->peer] = 1;
    }
    if (!left) break;
    if (atomic_load(&ops[0].comm->shared->aborted)) return fail(REMOTE, "another rank aborted");
    if (moved) end = now() + limit_seconds();
    else if (now() > end) {
      for (int i = 0; i < nops; i++)
        if (!finished(&ops[i]))
          return fail(SYSTEM, "rank %d: %s rank %d of %llu bytes never matched", ops[i].comm->rank,
                      ops[i].sending ? "send to" : "receive from", ops[i].peer, (unsigned long long)ops[i].bytes);
    } else sched_yield();
  }
  return OK;
}

int ncclGroupStart(void) {
  if (!depth++) nops = 0, group_error = OK;
  return OK;
}

int ncclGroupEnd(void) {
  if (depth == 0) return fail(USAGE, "GroupEnd without GroupStart");
  if (--depth) return OK;
  int code = group_error ? group_error : nops ? run_group() : OK;
  nops = 0;
  return code;
}

static int queue(int sending, const void *data, size_t count, int type, int peer, Comm *comm) {
  int size = type_size(type);
  if (!comm) return fail(ARGUMENT, "comm is NULL");
  if (!size) return group_error = fail(ARGUMENT, "datatype %d is unknown", type);
  if (peer < 0 || peer >= comm->nranks) return group_error = fail(ARGUMENT, "peer %d is out of range", peer);
  if (count && !data) return group_error = fail(ARGUMENT, "the buffer is NULL");
  if (!ops) ops = malloc(MAX_OPS * sizeof *ops);
  ncclGroupStart();
  if (nops == MAX_OPS) {
    depth--;
    return group_error = fail(INTERNAL, "too many calls in one group");
  }
  uint64_t bytes = (uint64_t)count * (uint64_t)size;
  ops[nops++] = (Op){sending, peer, type, (char *)data, bytes, 0, comm, {bytes, type, 0x4e43}};
  return ncclGroupEnd();
}

int ncclSend(const void *data, size_t count, int type, int peer, Comm *comm, void *stream) {
  (void)stream;
  return queue(1, data, count, type, peer, comm);
}

int ncclRecv(void *data, size_t count, int type, int peer, Comm *comm, void *stream) {
  (void)stream;
  return queue(0, data, count, type, peer, comm);
}

/* The collectives, by all-pairs sends: slow, simple, and enough to be compared with. */
static int exchange(const char *out, int out_step, char *in, size_t count, int type, Comm *comm) {
  size_t bytes = count * (size_t)type_size(type);
  if (depth) return group_error = fail(USAGE, "this stand-in runs collectives outside groups only");
  ncclGroupStart();
  for (int p = 0; p < comm->nranks; p++) {
    ncclSend(out + (size_t)(out_step * p) * bytes, count, type, p, comm, NULL);
    ncclRecv(in + (size_t)p * bytes, count, type, p, comm, NULL);
  }
  return ncclGroupEnd();
}

#define COMBINE(T)                                                                                   \
  for (size_t i = 0; i < count; i++) {                                                               \
    T a = ((T *)all)[i];                                                                             \
    for (int p = 1; p < nranks; p++) {                                                               \
      T b = ((T *)all)[(size_t)p * count + i];                                                       \
      a = op == 0 ? a + b : op == 1 ? a * b : op == 2 ? (a > b ? a : b) : (a < b ? a : b);           \
    }                                                                                                \
    ((T *)to)[i] = a;                                                                                \
  }

static int combine(const char *from, int step, char *to, size_t count, int type, int op, Comm *comm) {
  int nranks = comm->nranks;
  if (op < 0 || op > 3) return fail(ARGUMENT, "operation %d is unknown", op);
  if (type != 2 && type != 4 && type != 7 && type != 8) return fail(ARGUMENT, "no reduction for type %d", type);
  char *all = malloc(count * (size_t)type_size(type) * (size_t)nranks + 1);
  int code = exchange(from, step, all, count, type, comm);
  if (!code && type == 2) COMBINE(int32_t)
  if (!code && type == 4) COMBINE(int64_t)
  if (!code && type == 7) COMBINE(float)
  if (!code && type == 8) COMBINE(double)
  free(all);
  return code;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
  (void)stream;
  return combine(from, 0, to, count, type, op, comm);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
  (void)stream;
  return combine(from, 1, to, count, type, op, comm);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, void *stream) {
  (void)stream;
  char *all = malloc(count * (size_t)type_size(type) + 1);
  int code = combine(from, 0, all, count, type, op, comm);
  if (!code && comm->rank == root) memcpy(to, all, count * (size_t)type_size(type));
  free(all);
  return code;
}

int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
  (void)stream;
  size_t bytes = count * (size_t)type_size(type);
  char *all = malloc(bytes * (size_t)comm->nranks + 1);
  int code = exchange(from, 0, all, count, type, comm);
  if (!code) memcpy(to, all, bytes * (size_t)comm->nranks);
  free(all);
  return code;
}

int ncclAlltoAll(const void *from, void *to, size_t count, int type, Comm *comm, void *stream) {
  (void)stream;
  return exchange(from, 1, to, count, type, comm);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
  (void)stream;
  ncclGroupStart();
  if (comm->rank == root)
    for (int p = 0; p < comm->nranks; p++)
      if (p != root) ncclSend(from, count, type, p, comm, NULL);
  if (comm->rank != root) ncclRecv(to, count, type, root, comm, NULL);
  if (comm->rank == root && to != from) memmove(to, from, count * (size_t)type_size(type));
  return ncclGroupEnd();
}
