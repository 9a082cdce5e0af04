/*
 * Loaded into QEMU (LD_PRELOAD), which is not changed: has the kernel note which pages of the guest's memory are
 * written.
 *
 * The kernel tracks writes to a range only for a userfaultfd that was made in the process that has the range
 * (UFFD_FEATURE_WP_ASYNC: a fault removes the protection by itself, nobody is woken). So the range is registered here,
 * in the very call that maps it: nothing can write to it before. Another process then asks for what was written, by
 * PAGEMAP_SCAN.
 *
 * UNDERSTUDY_VM_MEMORY names the file that is the guest's memory, UNDERSTUDY_VM_NOTE the file into which this library
 * writes where that was mapped ("tracked START END LOCKED", in hexadecimal), or what failed ("failed STEP ERRNO").
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Names that the headers of older kernels do not have. */
#define USER_MODE_ONLY 1
#define WP_HUGETLBFS_SHMEM (1ULL << 12)
#define WP_UNPOPULATED (1ULL << 13)
#define WP_ASYNC (1ULL << 15)
#define LOCK_ON_FAULT 1

/* Kept open as long as QEMU runs: closing it ends the tracking. */
static int tracker = -1;

static void note(const char *text)
{
    const char *path = getenv("UNDERSTUDY_VM_NOTE");
    char partial[4096];
    if (!path || snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return;
    FILE *file = fopen(partial, "we");
    if (!file)
        return;
    int bad = fputs(text, file) < 0;
    /* The name appears when the text is complete. */
    if (fclose(file) == 0 && !bad)
        rename(partial, path);
}

static void failed(const char *step)
{
    char text[128];
    snprintf(text, sizeof text, "failed %s %d\n", step, errno);
    note(text);
}

static int is_guest_memory(int descriptor)
{
    const char *path = getenv("UNDERSTUDY_VM_MEMORY");
    struct stat wanted, mapped;
    return path && stat(path, &wanted) == 0 && fstat(descriptor, &mapped) == 0
        && wanted.st_dev == mapped.st_dev && wanted.st_ino == mapped.st_ino;
}

static void track(void *start, size_t length)
{
    /* An ordinary user may have one for faults in user mode only. The kernel's own writes are tracked all the same:
       the restriction concerns faults that somebody is woken for. */
    tracker = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
    if (tracker < 0) {
        failed("userfaultfd");
        return;
    }
    struct uffdio_api api = {.api = UFFD_API, .features = WP_ASYNC | WP_UNPOPULATED | WP_HUGETLBFS_SHMEM};
    if (ioctl(tracker, UFFDIO_API, &api)) {
        failed("features");
        return;
    }
    struct uffdio_register range = {
        .range = {(uintptr_t)start, length},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    if (ioctl(tracker, UFFDIO_REGISTER, &range)) {
        failed("register");
        return;
    }
    /* A page that is swapped out has no place for the mark whether it was written. Locked as they are touched, none
       is swapped out. */
    int locked = syscall(SYS_mlock2, start, length, LOCK_ON_FAULT) == 0;
    char text[128];
    snprintf(text, sizeof text, "tracked %lx %lx %d\n", (unsigned long)(uintptr_t)start,
             (unsigned long)((uintptr_t)start + length), locked);
    note(text);
}

static void *map(void *wanted, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    long mapped = syscall(SYS_mmap, wanted, length, protection, flags, descriptor, offset);
    /* The flags have MAP_SHARED, or MAP_SHARED_VALIDATE, which includes its bit. */
    if (mapped != -1 && tracker < 0 && descriptor >= 0 && (flags & MAP_SHARED)
        && is_guest_memory(descriptor)) {
        int before = errno;
        track((void *)mapped, length);
        errno = before;
    }
    return (void *)mapped;
}

__attribute__((visibility("default"))) void *mmap(void *wanted, size_t length, int protection, int flags,
                                                  int descriptor, off_t offset)
{
    return map(wanted, length, protection, flags, descriptor, offset);
}

__attribute__((visibility("default"))) void *mmap64(void *wanted, size_t length, int protection, int flags,
                                                    int descriptor, off_t offset)
{
    return map(wanted, length, protection, flags, descriptor, offset);
}
