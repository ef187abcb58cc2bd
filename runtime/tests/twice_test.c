/* Two copies of the library in one process, as two packages may bring: twice_test LIBRARY ARTIFACT.
 * Each has its own threads, and both may run, fork and go at the same time. */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
/* UndefinedBehaviorSanitizer forgets a few bytes of its own for every library. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif

typedef struct Copy {
    void *handle;
    int32_t (*load)(const char *, const aot_load_options *, aot_model **, aot_error *);
    void (*unload)(aot_model *);
    int32_t (*create)(const aot_model *, const aot_session_options *, aot_session **, aot_error *);
    void (*destroy)(aot_session *);
    int32_t (*run)(aot_session *, const aot_tensor *const *, uint32_t, const aot_tensor *const *, uint32_t,
                   const aot_run_options *, aot_error *);
    const char *artifact;
} Copy;

static void *find(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    CHECK(found);
    return found;
}

static Copy resolve(void *handle, const char *artifact) {
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    CHECK(handle);
    Copy copy = {.handle = handle, .artifact = artifact};
    *(void **)&copy.load = find(handle, "aot_model_load_file");
    *(void **)&copy.unload = find(handle, "aot_model_unload");
    *(void **)&copy.create = find(handle, "aot_session_create");
    *(void **)&copy.destroy = find(handle, "aot_session_destroy");
    *(void **)&copy.run = find(handle, "aot_session_run");
    return copy;
}

static void *work(void *argument) {
    const Copy *copy = argument;
    aot_error error = {.struct_size = sizeof error};
    aot_model *model = NULL;
    CHECK(copy->load(copy->artifact, NULL, &model, &error) == AOT_OK);
    aot_session_options options = {.struct_size = sizeof options, .thread_count = 3};
    aot_session *session = NULL;
    CHECK(copy->create(model, &options, &session, &error) == AOT_OK);
    for (int64_t batch = 1; batch < 60; ++batch) {
        Case c;
        make(&c, batch);
        CHECK(copy->run(session, c.inputs, 1, c.outputs, 1, NULL, &error) == AOT_OK && right(c.x, c.y, batch));
        drop(&c);
    }
    copy->destroy(session);
    copy->unload(model);
    return NULL;
}

static void both(Copy *first, Copy *second) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, first) == 0);
    work(second);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void copy_file(const char *from, const char *to) {
    const int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    struct stat status;
    CHECK(source >= 0 && target >= 0 && fstat(source, &status) == 0);
    for (off_t at = 0; at < status.st_size;) CHECK(sendfile(target, source, &at, (size_t)(status.st_size - at)) > 0);
    CHECK(close(source) == 0 && close(target) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    char path[64];
    snprintf(path, sizeof path, "/tmp/aot-twice-%ld.so", (long)getpid());
    copy_file(argv[1], path);
    Copy first = resolve(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), argv[2]);
    Copy second = resolve(dlopen(path, RTLD_NOW | RTLD_LOCAL), argv[2]);
    CHECK(unlink(path) == 0);
    CHECK(first.handle != second.handle && first.run != second.run);
    both(&first, &second);
#if !defined(__SANITIZE_THREAD__)
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        both(&first, &second);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
#endif
    /* Its threads go on for ever, so a closed library stays in memory; another copy is not disturbed. */
    CHECK(dlclose(second.handle) == 0);
    work(&first);
    /* The same file once more is the same copy. */
    Copy again = resolve(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), argv[2]);
    CHECK(again.handle == first.handle && again.run == first.run);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    /* In a namespace of its own, with another C library. */
    Copy apart = resolve(dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW), argv[2]);
    CHECK(apart.run != first.run);
    both(&first, &apart);
#endif
    puts("ok");
    return 0;
}
