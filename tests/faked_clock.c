/* SPDX-License-Identifier: Apache-2.0 */
/* A wall clock that can be set under running processes, and only under them: preloaded.
 *
 * FAKED_CLOCK names a file of eight bytes: by how many seconds the wall clock is ahead. What a
 * program reads of that clock and what it waits for by it are shifted; the monotonic clock is left
 * alone. libfaketime 0.9.10 confuses the two (its issues 469 and 503) and reads its file at each
 * call: under it Triton took 30 s longer to end, and once answered nothing more.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct timespec Time;

/* A jump ends waits that are past their time then; they look this often whether one happened. */
#define SLICE_NANOSECONDS 50000000
#define SECOND 1000000000
/* glibc's pthread_cond_t: the clock its timed waits go by (nptl/pthreadP.h). */
#define COND_IS_MONOTONIC 2

static const volatile int64_t *ahead;
static int (*true_gettime)(clockid_t, Time *);
static int (*true_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const Time *);

__attribute__((constructor)) static void begin(void) {
    true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    true_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!true_cond_timedwait) true_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    const char *path = getenv("FAKED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) abort();
    close(file);
    ahead = mapped;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, Time *now) {
    if (!ahead) return syscall(SYS_clock_gettime, clock, now);
    int failed = true_gettime(clock, now);
    if (!failed && is_wall(clock)) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    Time exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *kept) {
    Time exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept) *kept = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(Time *now, int base) { return clock_gettime(CLOCK_REALTIME, now) ? 0 : base; }

/* What the machine's clock says when the faked one says `faked`. */
static Time machine_time(const Time *faked) {
    return (Time){faked->tv_sec - *ahead, faked->tv_nsec};
}

static int is_before(const Time *one, const Time *other) {
    return one->tv_sec != other->tv_sec ? one->tv_sec < other->tv_sec : one->tv_nsec < other->tv_nsec;
}

/* Until when to wait now, by the machine's clock: whether that is all of the wait. */
static int is_last(const Time *until, Time *look) {
    Time due = machine_time(until);
    true_gettime(CLOCK_REALTIME, look);
    look->tv_nsec += SLICE_NANOSECONDS;
    if (look->tv_nsec >= SECOND) look->tv_sec++, look->tv_nsec -= SECOND;
    if (is_before(look, &due)) return 0;
    *look = due;
    return 1;
}

/* One slice of a wait; told as woken for no reason when it is not over, as POSIX allows: a signal
 * between two slices would be lost. */
static int wait_by_wall(pthread_cond_t *cond, pthread_mutex_t *mutex, const Time *until) {
    Time look;
    int last = is_last(until, &look);
    int said = true_cond_timedwait(cond, mutex, &look);
    return said == ETIMEDOUT && !last ? 0 : said;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const Time *restrict until) {
    if (cond->__data.__wrefs & COND_IS_MONOTONIC) return true_cond_timedwait(cond, mutex, until);
    return wait_by_wall(cond, mutex, until);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           clockid_t clock, const Time *restrict until) {
    if (is_wall(clock)) return wait_by_wall(cond, mutex, until);
    int (*wait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const Time *) =
        dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    return wait(cond, mutex, clock, until);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const Time *restrict until) {
    int (*lock)(pthread_mutex_t *, const Time *) = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    int said, last;
    Time look;
    do {
        last = is_last(until, &look);
        said = lock(mutex, &look);
    } while (said == ETIMEDOUT && !last);
    return said;
}

int sem_timedwait(sem_t *restrict semaphore, const Time *restrict until) {
    int (*wait)(sem_t *, const Time *) = dlsym(RTLD_NEXT, "sem_timedwait");
    int said, last;
    Time look;
    do {
        last = is_last(until, &look);
        said = wait(semaphore, &look);
    } while (said && errno == ETIMEDOUT && !last);
    return said;
}

int clock_nanosleep(clockid_t clock, int flags, const Time *until, Time *left) {
    Time due = is_wall(clock) && flags & TIMER_ABSTIME ? machine_time(until) : *until;
    return syscall(SYS_clock_nanosleep, clock, flags, &due, left) ? errno : 0;
}

/* abseil, in gRPC and Triton, waits for futexes by the wall clock itself. */
long syscall(long number, ...) {
    static long (*call)(long, ...);
    if (!call) call = dlsym(RTLD_NEXT, "syscall");
    long with[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) with[i] = va_arg(list, long);
    va_end(list);
    if (!(ahead && number == SYS_futex && with[3] && with[1] & FUTEX_CLOCK_REALTIME))
        return call(number, with[0], with[1], with[2], with[3], with[4], with[5]);
    Time look;
    int last = is_last((const Time *)with[3], &look);
    long said = call(number, with[0], with[1], with[2], &look, with[4], with[5]);
    if (said && errno == ETIMEDOUT && !last) errno = EINTR;
    return said;
}
