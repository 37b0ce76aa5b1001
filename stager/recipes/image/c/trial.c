/* The self-test's daring half: calls of our own code in a child process. If one ends the child, or never returns, that is
   an answer, too; the caller goes on. */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_DONE (-2)
#define CPU_SECONDS_MOST 2 /* milliseconds are needed */
#define SECONDS_MOST 30    /* on a machine with much else to do */

/* A call of stager_resize, stager_restore_png or stager_decode_resized, which take the same. */
typedef struct {
    int (*call)(const uint8_t *data, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                uint8_t *out);
    const uint8_t *data;
    int64_t numbers[9];
    int64_t out_bytes;
    int64_t result; /* what it returned, or NOT_DONE */
} Trial;

static void run(Trial *shared, int64_t count, uint8_t *out)
{
    static const int ENDS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM, SIGXCPU, SIGTERM, SIGINT};
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        signal(ENDS[i], SIG_DFL); /* the caller's handlers would tell of it as of the caller's own end */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setrlimit(RLIMIT_CPU, &(struct rlimit){CPU_SECONDS_MOST, CPU_SECONDS_MOST});
    alarm(SECONDS_MOST);
    for (Trial *trial = shared; trial < shared + count; out += trial->out_bytes, trial++) {
        const int64_t *n = trial->numbers;
        trial->result = trial->call(trial->data, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], out);
    }
}

/* Run `count` trials; what they make goes to `out`, one behind the other. Returns -1 if there can be no child. */
int stager_try(Trial *trials, int64_t count, uint8_t *out)
{
    size_t told = (size_t)count * sizeof *trials, bytes = told;
    for (int64_t i = 0; i < count; i++) {
        bytes += (size_t)trials[i].out_bytes;
        trials[i].result = NOT_DONE;
    }
    Trial *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return -1;
    memcpy(shared, trials, told);
    pid_t child = fork();
    if (child == 0) {
        run(shared, count, (uint8_t *)shared + told);
        _exit(0);
    }
    /* Its end may be told to somebody else (ECHILD): then, too, it has ended. */
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    for (int64_t i = 0; i < count; i++)
        trials[i].result = shared[i].result;
    memcpy(out, (uint8_t *)shared + told, bytes - told);
    munmap(shared, bytes);
    return child > 0 ? 0 : -1;
}
