/* What goes wrong around a process: forks, exits, files that change, systems that forbid things, flipped bits.
 * robust_test ARTIFACT; with a second argument it is one of its own children. */
#define _GNU_SOURCE
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif
#if defined(__SANITIZE_THREAD__)
#define FORKS 0 /* ThreadSanitizer cannot follow a fork of a process with threads */
#else
#define FORKS 1
#endif

enum { SKIPPED = 77, LONGEST_SECONDS = 60 };

extern char **environ;
static const char *artifact_path;
static atomic_int stop;
static char *bytes;
static size_t size;

static void read_sample(void) {
    FILE *file = fopen(artifact_path, "rb");
    CHECK(file);
    bytes = malloc(1 << 20);
    size = fread(bytes, 1, 1 << 20, file);
    CHECK(size > 0 && size < 1 << 20);
    fclose(file);
}

static aot_model *load(const char *path, uint32_t flags) {
    aot_error error = {.struct_size = sizeof error};
    aot_load_options options = {.struct_size = sizeof options, .flags = flags};
    aot_model *model = NULL;
    if (aot_model_load_file(path, &options, &model, &error) != AOT_OK) {
        fprintf(stderr, "%s: %s\n", error.where, error.message);
        exit(1);
    }
    return model;
}

static aot_session *new_session(const aot_model *model, uint32_t threads, aot_pool *pool) {
    aot_session_options options = {.struct_size = sizeof options, .thread_count = threads, .pool = pool};
    aot_session *session = NULL;
    CHECK(aot_session_create(model, &options, &session, NULL) == AOT_OK);
    return session;
}

static void run_right(aot_session *session, int64_t batch) {
    Case c;
    make(&c, batch);
    CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, NULL, NULL) == AOT_OK && right(c.x, c.y, batch));
    drop(&c);
}

static int32_t run_status(aot_session *session, aot_error *error) {
    Case c;
    make(&c, 3);
    const int32_t status = aot_session_run(session, c.inputs, 1, c.outputs, 1, NULL, error);
    CHECK(status != AOT_OK || right(c.x, c.y, 3));
    drop(&c);
    return status;
}

#if FORKS
/* The exit status of a child that runs `f`; it must end on its own. */
static int in_child(int (*f)(void)) {
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(LONGEST_SECONDS);
        _exit(f());
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void child_passes(const char *name, int (*f)(void)) {
    const int status = in_child(f);
    CHECK(status == 0 || status == SKIPPED);
    if (status == SKIPPED) printf("skipped: %s: this system does not allow the test\n", name);
}

/* ---- forks ---- */

static atomic_int started;

/* Without memory from the heap in its loop: a sanitizer's allocator stays locked in the child of a fork. */
static void *keep_running(void *model) {
    aot_session *session = new_session(model, 3, NULL);
    Case c;
    make(&c, 40);
    for (int i = 0; !atomic_load(&stop); ++i) {
        CHECK(aot_session_run(session, c.inputs, 1, c.outputs, 1, NULL, NULL) == AOT_OK && right(c.x, c.y, 40));
        if (i == 0) atomic_fetch_add(&started, 1);
    }
    drop(&c);
    aot_session_destroy(session);
    return NULL;
}

static aot_model *shared;
static aot_pool *shared_pool;
static aot_session *idle;

static int work_after_fork(void) {
    run_right(idle, 9); /* made before the fork, in the pool of the process */
    aot_session *session = new_session(shared, 3, shared_pool);
    run_right(session, 33);
    aot_session_destroy(session);
    aot_pool_destroy(shared_pool);
    session = new_session(shared, 2, NULL);
    run_right(session, 5);
    aot_session_destroy(session);
    aot_model *model = load(artifact_path, 0);
    session = new_session(model, 2, NULL);
    run_right(session, 17);
    aot_session_destroy(session);
    aot_model_unload(model);
    return 0;
}

static int fork_again(void) {
    run_right(idle, 9); /* starts threads, which the next fork loses again */
    return in_child(work_after_fork) || work_after_fork();
}

static void test_fork_while_others_run(void) {
    shared = load(artifact_path, 0);
    CHECK(aot_pool_create(3, &shared_pool, NULL) == AOT_OK);
    idle = new_session(shared, 3, NULL);
    run_right(idle, 9);
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, keep_running, shared) == 0);
    while (atomic_load(&started) < 2) usleep(1000);
    for (int i = 0; i < 10; ++i) CHECK(in_child(i % 2 ? work_after_fork : fork_again) == 0);
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    run_right(idle, 9);
    aot_session_destroy(idle);
    aot_pool_destroy(shared_pool);
    aot_model_unload(shared);
}

#endif

/* ---- exits ---- */

static void *run_for_ever(void *session) {
    for (;;) run_right(session, 64);
    return NULL;
}

static void *exit_soon(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    exit(0);
}

/* Leaves with sessions alive, threads in runs, and the pool's threads spinning or parked. */
static int leave(const char *how) {
    alarm(LONGEST_SECONDS);
    static aot_model *model; /* static, so that LeakSanitizer finds all of it */
    static aot_pool *pool;
    static aot_session *alive[4];
    model = load(artifact_path, strcmp(how, "mapped") == 0 ? AOT_LOAD_MAP_WEIGHTS : 0u);
    CHECK(aot_pool_create(2, &pool, NULL) == AOT_OK);
    pthread_t thread;
    for (int i = 0; i < 3; ++i) {
        alive[i] = new_session(model, 2, i % 2 ? pool : NULL);
        CHECK(pthread_create(&thread, NULL, run_for_ever, alive[i]) == 0);
        CHECK(pthread_detach(thread) == 0);
    }
    alive[3] = new_session(model, 1, NULL);
    run_right(alive[3], 3);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    if (strcmp(how, "thread") == 0) {
        CHECK(pthread_create(&thread, NULL, exit_soon, NULL) == 0);
        pthread_exit(NULL);
    }
    if (strcmp(how, "quick") == 0) quick_exit(0);
    return 0;
}

static void test_exit_with_live_sessions(const char *self) {
    static const char *const ways[] = {"return", "mapped", "thread", "quick"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
        char *arguments[] = {(char *)self, (char *)artifact_path, (char *)ways[i], NULL};
        pid_t child;
        int status = -1;
        CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* ---- files that change ---- */

static char file_path[64];

static void write_file(const char *path, const char *data, size_t length) {
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(descriptor >= 0 && write(descriptor, data, length) == (ssize_t)length && close(descriptor) == 0);
}

static void wait_for_another_time(void) { nanosleep(&(struct timespec){0, 30000000}, NULL); }

static void test_file_changes_after_loading(void) {
    static const uint32_t flags[] = {0, AOT_LOAD_MAP_WEIGHTS};
    for (int mapped = 0; mapped < 2; ++mapped) {
        for (int change = 0; change < 4; ++change) {
            write_file(file_path, bytes, size);
            wait_for_another_time();
            aot_model *model = load(file_path, flags[mapped]);
            aot_session *session = new_session(model, 1, NULL);
            run_right(session, 7);
            if (change == 0) { /* replaced, as an installer does */
                char other[80];
                snprintf(other, sizeof other, "%s.new", file_path);
                write_file(other, "something else", 14);
                CHECK(rename(other, file_path) == 0);
            } else if (change == 1) {
                CHECK(unlink(file_path) == 0);
            } else if (change == 2) {
                CHECK(truncate(file_path, 100) == 0);
            } else { /* written to in place */
                const int descriptor = open(file_path, O_WRONLY | O_CLOEXEC);
                CHECK(descriptor >= 0 && pwrite(descriptor, "?", 1, (off_t)size - 8) == 1 && close(descriptor) == 0);
            }
            aot_error error = {.struct_size = sizeof error};
            if (mapped && change >= 2) {
                CHECK(run_status(session, &error) == AOT_ERROR_IO && strstr(error.message, "truncated"));
                CHECK(strstr(error.hint, "rename") && strcmp(error.where, file_path) == 0);
                CHECK(run_status(session, &error) == AOT_ERROR_IO);
            } else {
                run_right(session, 7);
            }
            aot_session_destroy(session);
            aot_model_unload(model);
        }
    }
}

static void *spoil(void *unused) {
    (void)unused;
    for (unsigned round = 0; !atomic_load(&stop); ++round) {
        const int descriptor = open(file_path, O_WRONLY | O_CLOEXEC);
        CHECK(descriptor >= 0);
        const off_t place = (off_t)(round * 7919u % size);
        const char wrong = (char)(bytes[place] ^ 1);
        CHECK(pwrite(descriptor, &wrong, 1, place) == 1);
        if (round % 8 == 0) CHECK(ftruncate(descriptor, place) == 0);
        sched_yield();
        CHECK(pwrite(descriptor, bytes, size, 0) == (ssize_t)size);
        CHECK(close(descriptor) == 0);
        sched_yield();
    }
    return NULL;
}

/* A file that someone writes to during the load: refused, or loaded as it was before or after, never a mixture. */
static void test_file_changes_while_loading(void) {
    write_file(file_path, bytes, size);
    atomic_store(&stop, 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, spoil, NULL) == 0);
    int refused = 0;
    for (int i = 0; i < (SANITIZED ? 100 : 1000); ++i) {
        aot_load_options options = {.struct_size = sizeof options, .flags = i % 2 ? AOT_LOAD_MAP_WEIGHTS : 0u};
        aot_error error = {.struct_size = sizeof error};
        aot_model *model = NULL;
        const int32_t status = aot_model_load_file(file_path, &options, &model, &error);
        if (status != AOT_OK) {
            CHECK(!model && (status == AOT_ERROR_DAMAGED || status == AOT_ERROR_IO));
            ++refused;
            continue;
        }
        if (!options.flags) {
            aot_session *session = new_session(model, 1, NULL);
            run_right(session, 11);
            aot_session_destroy(session);
        }
        aot_model_unload(model);
    }
    atomic_store(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("a file under change: %d loads refused\n", refused);
    aot_model_unload(load(file_path, 0));
    CHECK(unlink(file_path) == 0);
}

/* ---- systems that forbid things ---- */

#if FORKS
/* Makes one system call fail. False where seccomp is not allowed. */
static int forbid(const int *calls, size_t count, int error_number) {
    struct sock_filter rules[16] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short n = 1;
    for (size_t i = 0; i < count; ++i) {
        rules[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        rules[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error_number);
    }
    rules[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {n, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int32_t load_memory(const char *folder, aot_model **model, aot_error *error) {
    aot_load_options options = {.struct_size = sizeof options, .temporary_directory = folder};
    *error = (aot_error){.struct_size = sizeof *error};
    return aot_model_load_memory(bytes, size, &options, model, error);
}

static void use_and_drop(aot_model *model) {
    aot_session *session = new_session(model, 1, NULL);
    run_right(session, 12);
    aot_session_destroy(session);
    aot_model_unload(model);
}

/* Where the system forbids memfd_create, code goes through a file in a folder that the caller names. */
static int without_memfd(void) {
    if (!forbid((const int[]){SYS_memfd_create}, 1, EPERM)) return SKIPPED;
    aot_model *model = NULL;
    aot_error error;
    CHECK(load_memory(NULL, &model, &error) == AOT_ERROR_TARGET && !model);
    CHECK(strstr(error.message, "memfd_create") && strstr(error.hint, "temporary_directory"));
    char folder[] = "/tmp/aot-test-XXXXXX";
    CHECK(mkdtemp(folder));
    CHECK(load_memory(folder, &model, &error) == AOT_OK);
    CHECK(rmdir(folder) == 0); /* nothing was left there */
    use_and_drop(model);
    CHECK(load_memory("/nowhere", &model, &error) == AOT_ERROR_IO && strstr(error.message, "No such file"));
    return 0;
}

/* Without /proc, as in a chroot, memfd_create works but its file has no path. */
static int without_proc(void) {
    char folder[] = "/tmp/aot-test-XXXXXX";
    CHECK(mkdtemp(folder));
    if (chroot(folder) != 0) return rmdir(folder) == 0 ? SKIPPED : 1;
    CHECK(chdir("/") == 0);
    aot_model *model = NULL;
    aot_error error;
    CHECK(load_memory(NULL, &model, &error) == AOT_ERROR_TARGET && strstr(error.message, "refuses to load"));
    CHECK(load_memory("/", &model, &error) == AOT_OK);
    use_and_drop(model);
    return 0;
}

/* A folder mounted noexec is no place for code; the message says so, and nothing is left there. */
static int with_noexec_folder(void) {
    char folder[] = "/tmp/aot-test-XXXXXX";
    CHECK(mkdtemp(folder));
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", MS_NOEXEC, NULL) != 0 || !forbid((const int[]){SYS_memfd_create}, 1, ENOSYS)) {
        return rmdir(folder) == 0 ? SKIPPED : 1;
    }
    aot_model *model = NULL;
    aot_error error;
    CHECK(load_memory(folder, &model, &error) == AOT_ERROR_TARGET && strstr(error.hint, "noexec"));
    DIR *entries = opendir(folder);
    CHECK(entries);
    for (struct dirent *entry; (entry = readdir(entries));) CHECK(entry->d_name[0] == '.');
    CHECK(closedir(entries) == 0);
    CHECK(umount2(folder, MNT_DETACH) == 0 && rmdir(folder) == 0);
    return 0;
}

/* No thread can be started: an error, and runs on one thread still work. */
static int without_threads(void) {
    if (!forbid((const int[]){SYS_clone, SYS_clone3}, 2, EAGAIN)) return SKIPPED;
    aot_model *model = load(artifact_path, 0);
    aot_error error = {.struct_size = sizeof error};
    aot_session_options options = {.struct_size = sizeof options, .thread_count = 3};
    aot_session *session = NULL;
    CHECK(aot_session_create(model, &options, &session, &error) == AOT_ERROR_MEMORY && !session);
    CHECK(strstr(error.message, "thread 2") && strstr(error.hint, "fewer threads"));
    aot_pool *pool = NULL;
    CHECK(aot_pool_create(4, &pool, &error) == AOT_ERROR_MEMORY && !pool);
    use_and_drop(model);
    return 0;
}

static int without_descriptors(void) {
    const struct rlimit none = {3, 3};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    aot_model *model = NULL;
    aot_error error;
    CHECK(load_memory(NULL, &model, &error) == AOT_ERROR_TARGET && strstr(error.message, "Too many open files"));
    CHECK(aot_model_load_file(artifact_path, NULL, &model, &error) == AOT_ERROR_IO);
    CHECK(aot_default_thread_count() >= 1);
    return 0;
}

#endif

/* ---- bits ---- */

/* No bit of the file is without meaning: each, flipped, is noticed. */
static void test_every_bit(void) {
    aot_error error = {.struct_size = sizeof error};
    aot_model *model = NULL;
    const size_t stride = SANITIZED ? 13 : 1;
    size_t refused = 0;
    for (size_t bit = 0; bit < 8 * size; bit += stride) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        CHECK(aot_model_load_memory(bytes, size, NULL, &model, &error) == AOT_ERROR_DAMAGED && !model);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        ++refused;
    }
    CHECK(aot_model_load_memory(bytes, size, NULL, &model, &error) == AOT_OK);
    aot_model_unload(model);
    printf("%zu of %zu flipped bits tried, all refused\n", refused, 8 * size);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 || argc == 3);
    artifact_path = argv[1];
    if (argc == 3) return leave(argv[2]);
    read_sample();
    snprintf(file_path, sizeof file_path, "/tmp/aot-robust-%ld.aot", (long)getpid());
#if FORKS
    child_passes("memfd_create forbidden", without_memfd);
    child_passes("no /proc", without_proc);
    child_passes("folder without execution", with_noexec_folder);
    child_passes("no threads", without_threads);
    if (!SANITIZED) child_passes("no descriptors", without_descriptors); /* sanitizers need some themselves */
    test_fork_while_others_run();
#endif
    test_exit_with_live_sessions(argv[0]);
    test_file_changes_after_loading();
    test_file_changes_while_loading();
    test_every_bit();
    free(bytes);
    puts("ok");
    return 0;
}
