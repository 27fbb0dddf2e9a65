/* Preloaded into a process of a test: its wall clock is off by what the file AKV_TEST_CLOCK says.
 *
 * The file holds one 64-bit number, nanoseconds, and is mapped, so that the test can let the clock jump while
 * the process runs. Monotonic clocks are as they are, and so is the machine's clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NANOSECONDS = 1000000000 };

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static _Atomic int64_t *offset;

static void find_clock(void) {
  *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

__attribute__((constructor)) static void map_offset(void) {
  find_clock();
  const char *path = getenv("AKV_TEST_CLOCK");
  const int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    return;
  }
  void *mapped = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) {
    offset = mapped;
  }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (real_clock_gettime == NULL) {
    find_clock();
  }
  const int result = real_clock_gettime(clock, now);
  if (result == 0 && offset != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    const int64_t moment = (int64_t)now->tv_sec * NANOSECONDS + now->tv_nsec + atomic_load(offset);
    now->tv_sec = moment / NANOSECONDS;
    now->tv_nsec = moment % NANOSECONDS;
  }
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec moment;
  const int result = clock_gettime(CLOCK_REALTIME, &moment);
  now->tv_sec = moment.tv_sec;
  now->tv_usec = moment.tv_nsec / 1000;
  return result;
}

time_t time(time_t *out) {
  struct timespec moment;
  clock_gettime(CLOCK_REALTIME, &moment);
  if (out != NULL) {
    *out = moment.tv_sec;
  }
  return moment.tv_sec;
}
