"""Gives programs a C library of which some functions answer as on another machine.

FREE_BYTES: how much room statvfs() finds in every folder. MEMINFO: the file that is read in place of
/proc/meminfo. NO_LOCKS: flock() of a file `.lock` answers that the file system has no locks.
NO_THREADS: pthread_create() finds no room for another thread.
NO_SHARED_MAPS: mmap() of a file for reading gives no pages that others share, as some FUSE file systems.
NO_WRITABLE_MAPS: a folder; of files in it mmap() gives no shared pages that can be written.
CLOCK_AHEAD: the seconds by which stat() finds the times of files later than they are, as where a file server's
clock is; below 0: earlier.
SAW_NO_LOCK: stat() finds no file `.lock` until the process has made a file beside it, as where a file server's
client remembers that there was none.
DIES_RENAMING_TO: the end of a path; who renames something to it is killed before it is done.
FILE_SYSTEM: the type (f_type) that fstatfs() finds, as of a file server.
FULL_WHILE: as long as there is a file of that name, no row of a `metrics.jsonl` finds room.
"""

import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

static int fill(int code, struct statvfs* found) {
  const char* bytes = getenv("FREE_BYTES");
  if (code == 0 && bytes) found->f_bfree = found->f_bavail = strtoull(bytes, 0, 10) / found->f_frsize;
  return code;
}
int statvfs(const char* path, struct statvfs* found) {
  int (*next)(const char*, struct statvfs*) = dlsym(RTLD_NEXT, "statvfs");
  return fill(next(path, found), found);
}
int statvfs64(const char* path, struct statvfs64* found) {
  return statvfs(path, (struct statvfs*)found);
}
static const char* file_of(const char* path) {
  const char* other = getenv("MEMINFO");
  return other && strcmp(path, "/proc/meminfo") == 0 ? other : path;
}
FILE* fopen(const char* path, const char* mode) {
  FILE* (*next)(const char*, const char*) = dlsym(RTLD_NEXT, "fopen");
  return next(file_of(path), mode);
}
FILE* fopen64(const char* path, const char* mode) {
  FILE* (*next)(const char*, const char*) = dlsym(RTLD_NEXT, "fopen64");
  return next(file_of(path), mode);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*start)(void*), void* what) {
  int (*next)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  return getenv("NO_THREADS") ? EAGAIN : next(thread, how, start, what);
}
static int is_named(int descriptor, const char* end) {
  char link[64], name[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, name, sizeof name - 1), length = strlen(end);
  return size > length && strcmp(name + size - length, end) == 0;
}
static int is_inside(int descriptor, const char* folder) {
  char link[64], name[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, name, sizeof name - 1), length = strlen(folder);
  return size > length && strncmp(name, folder, length) == 0;
}
int flock(int descriptor, int operation) {
  int (*next)(int, int) = dlsym(RTLD_NEXT, "flock");
  if (getenv("NO_LOCKS") && is_named(descriptor, "/.lock")) {
    errno = ENOLCK;
    return -1;
  }
  return next(descriptor, operation);
}
void* mmap(void* address, size_t size, int access, int kind, int descriptor, off_t offset) {
  void* (*next)(void*, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
  if (getenv("NO_SHARED_MAPS") && kind == MAP_SHARED && access == PROT_READ) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  const char* folder = getenv("NO_WRITABLE_MAPS");
  if (folder && kind == MAP_SHARED && (access & PROT_WRITE) && is_inside(descriptor, folder)) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return next(address, size, access, kind, descriptor, offset);
}
void* mmap64(void* address, size_t size, int access, int kind, int descriptor, off_t offset) {
  return mmap(address, size, access, kind, descriptor, offset);
}
int fstatfs(int descriptor, struct statfs* found) {
  int (*next)(int, struct statfs*) = dlsym(RTLD_NEXT, "fstatfs");
  int code = next(descriptor, found);
  const char* type = getenv("FILE_SYSTEM");
  if (code == 0 && type) found->f_type = strtol(type, 0, 0);
  return code;
}
int fstatfs64(int descriptor, struct statfs64* found) {
  return fstatfs(descriptor, (struct statfs*)found);
}
static char made_in[4096];
int mkostemp(char* path, int flags) {
  int (*next)(char*, int) = dlsym(RTLD_NEXT, "mkostemp");
  const char* name = strrchr(path, '/');
  snprintf(made_in, sizeof made_in, "%.*s", name ? (int)(name - path) : 0, path);
  return next(path, flags);
}
int mkostemp64(char* path, int flags) {
  return mkostemp(path, flags);
}
static int forgets(const char* path) {
  int folder = (int)strlen(path) - 6;
  if (!getenv("SAW_NO_LOCK") || folder <= 0 || strcmp(path + folder, "/.lock") != 0) return 0;
  if (strlen(made_in) == folder && strncmp(path, made_in, folder) == 0) return 0;
  errno = ENOENT;
  return 1;
}
// libtorch brings functions of the C++ library that call an older name.
int __xstat(int version, const char* path, struct stat* found) {
  int (*next)(int, const char*, struct stat*) = dlsym(RTLD_NEXT, "__xstat");
  return forgets(path) ? -1 : next(version, path, found);
}
int __xstat64(int version, const char* path, struct stat64* found) {
  return __xstat(version, path, (struct stat*)found);
}
int stat(const char* path, struct stat* found) {
  int (*next)(const char*, struct stat*) = dlsym(RTLD_NEXT, "stat");
  if (forgets(path)) return -1;
  int code = next(path, found);
  const char* seconds = getenv("CLOCK_AHEAD");
  if (code == 0 && seconds) {
    found->st_mtim.tv_sec += atol(seconds);
    found->st_ctim.tv_sec += atol(seconds);
  }
  return code;
}
int rename(const char* from, const char* to) {
  int (*next)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
  const char* end = getenv("DIES_RENAMING_TO");
  if (end && strlen(to) >= strlen(end) && strcmp(to + strlen(to) - strlen(end), end) == 0) {
    kill(getpid(), SIGKILL);
    pause();
  }
  return next(from, to);
}
ssize_t write(int descriptor, const void* data, size_t size) {
  ssize_t (*next)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  const char* full = getenv("FULL_WHILE");
  if (full && access(full, F_OK) == 0 && is_named(descriptor, "/metrics.jsonl")) {
    errno = ENOSPC;
    return -1;
  }
  return next(descriptor, data, size);
}
"""


@functools.cache
def library():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="strata-preloaded-"))
    atexit.register(shutil.rmtree, folder, True)
    (folder / "answers.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", folder / "answers.so",
                    folder / "answers.c", "-ldl"], check=True)
    return folder / "answers.so"


def variables(**answers):
    """What to add to a program's environment."""
    # A program that looks for wrong addresses wants its own library to be the first.
    options = [*filter(None, [os.environ.get("ASAN_OPTIONS")]), "verify_asan_link_order=0"]
    return {"LD_PRELOAD": str(library()), "ASAN_OPTIONS": ":".join(options),
            **{name: str(value) for name, value in answers.items()}}
