/* A disk whose syncs fail, and that tells what a power cut would leave of a database and its log.
 *
 * Preloaded. It keeps, of each file that is followed, what has been synced: whole pages of the
 * page cache. A sync that fails drops the pages that were to be written: the file shows them, no
 * later sync writes them. It is told once to each descriptor that was open then, as Linux does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 16384
#define FILES 2
#define DESCRIPTORS 4096

struct file {
  char path[PATH_MAX];
  char *synced;            /* what the disk has */
  off_t size;              /* of that; -1 where it has no such file */
  char is_dirty[PAGES];
  long failures, syncs, fail_at;
};

static struct file files[FILES];
static int file_of[DESCRIPTORS]; /* one more than its index; 0 is none */
static long seen[DESCRIPTORS];
static void (*before_sync)(void);
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LOCKED pthread_mutex_lock(&guard)
#define UNLOCKED pthread_mutex_unlock(&guard)

static struct file *followed(int handle) {
  int known = handle >= 0 && handle < DESCRIPTORS ? file_of[handle] : 0;
  return known ? &files[known - 1] : 0;
}

static void take(struct file *file, int handle, int page) {
  char content[PAGE];
  ssize_t count = pread(handle, content, PAGE, (off_t)page * PAGE);
  if (count > 0) memcpy(file->synced + (off_t)page * PAGE, content, count);
  file->is_dirty[page] = 0;
}

static void take_all(struct file *file, int handle, int is_all) {
  struct stat status;
  fstat(handle, &status);
  if (status.st_size > (off_t)PAGES * PAGE) abort();
  for (int page = 0; (off_t)page * PAGE < status.st_size; page++)
    if (is_all || file->is_dirty[page]) take(file, handle, page);
  file->size = status.st_size;
}

/* ── what the test calls ─────────────────────────────────────────────────────────────── */

void disk_follow(int number, const char *path) {
  struct file *file = &files[number];
  LOCKED;
  if (!file->synced) file->synced = calloc(PAGES, PAGE);
  strncpy(file->path, path, PATH_MAX - 1);
  memset(file->is_dirty, 0, PAGES);
  file->failures = file->syncs = file->fail_at = 0;
  file->size = -1;
  for (int handle = 0; handle < DESCRIPTORS; handle++)
    if (file_of[handle] == number + 1) file_of[handle] = 0;
  int handle = REAL(open)(path, O_RDONLY);
  if (handle >= 0) {
    take_all(file, handle, 1);
    REAL(close)(handle);
  }
  UNLOCKED;
}

void disk_fail(int number, long nth) { files[number].fail_at = nth; }
long disk_syncs(int number) { return files[number].syncs; }
long disk_failures(int number) { return files[number].failures; }

void disk_before_sync(void (*call)(void)) { before_sync = call; }

/* Write what a power cut would leave of a file: what was synced, perhaps also what was to be. */
void disk_left(int number, const char *path, int is_written) {
  struct file *file = &files[number];
  LOCKED;
  if (file->size >= 0) {
    int handle = REAL(open)(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (write(handle, file->synced, file->size) != file->size) abort();
    int live = is_written ? REAL(open)(file->path, O_RDONLY) : -1;
    for (int page = 0; live >= 0 && page < PAGES; page++) {
      char content[PAGE];
      ssize_t count = file->is_dirty[page] ? pread(live, content, PAGE, (off_t)page * PAGE) : 0;
      if (count > 0 && REAL(pwrite64)(handle, content, count, (off_t)page * PAGE) != count) abort();
    }
    if (live >= 0) REAL(close)(live);
    REAL(close)(handle);
  }
  UNLOCKED;
}

/* ── what everybody calls ────────────────────────────────────────────────────────────── */

static int opened(int handle, const char *path) {
  char whole[PATH_MAX];
  if (handle < 0 || handle >= DESCRIPTORS) return handle;
  LOCKED;
  file_of[handle] = 0;
  for (int number = 0; number < FILES; number++)
    if (files[number].path[0] && realpath(path, whole) && !strcmp(whole, files[number].path)) {
      file_of[handle] = number + 1;
      seen[handle] = files[number].failures;
      if (files[number].size < 0) files[number].size = 0;
    }
  UNLOCKED;
  return handle;
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
  va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE return opened(REAL(open)(path, flags, mode), path); }
int open64(const char *path, int flags, ...) { MODE return opened(REAL(open64)(path, flags, mode), path); }

int close(int handle) {
  LOCKED;
  if (handle >= 0 && handle < DESCRIPTORS) file_of[handle] = 0;
  int failed = REAL(close)(handle);
  UNLOCKED;
  return failed;
}

static void moved(int from, int to) {
  if (to < 0 || to >= DESCRIPTORS) return;
  file_of[to] = from >= 0 && from < DESCRIPTORS ? file_of[from] : 0;
}

int dup2(int from, int to) {
  LOCKED;
  int handle = REAL(dup2)(from, to);
  moved(from, handle);
  UNLOCKED;
  return handle;
}

int dup3(int from, int to, int flags) {
  LOCKED;
  int handle = REAL(dup3)(from, to, flags);
  moved(from, handle);
  UNLOCKED;
  return handle;
}

static ssize_t wrote(int handle, const void *content, size_t size, off_t at) {
  LOCKED;
  ssize_t count = REAL(pwrite64)(handle, content, size, at);
  struct file *file = followed(handle);
  if (file && count > 0)
    for (off_t page = at / PAGE; page * PAGE < at + count; page++) file->is_dirty[page] = 1;
  UNLOCKED;
  return count;
}

ssize_t pwrite(int handle, const void *content, size_t size, off_t at) { return wrote(handle, content, size, at); }
ssize_t pwrite64(int handle, const void *content, size_t size, off_t at) { return wrote(handle, content, size, at); }

static int synced(int handle, int (*real)(int)) {
  if (followed(handle) && before_sync) before_sync();
  LOCKED;
  struct file *file = followed(handle);
  if (!file) {
    UNLOCKED;
    return real(handle);
  }
  if (++file->syncs == file->fail_at) {
    memset(file->is_dirty, 0, PAGES);
    file->failures++;
  }
  take_all(file, handle, 0);
  int failed = seen[handle] < file->failures;
  seen[handle] = file->failures;
  UNLOCKED;
  if (failed) errno = EIO;
  return failed ? -1 : 0;
}

int fsync(int handle) { return synced(handle, REAL(fsync)); }
int fdatasync(int handle) { return synced(handle, REAL(fdatasync)); }

static int cut(int handle, off_t size) {
  LOCKED;
  int failed = REAL(ftruncate64)(handle, size);
  struct file *file = followed(handle);
  if (file && !failed && file->size > size) file->size = size;
  UNLOCKED;
  return failed;
}

int ftruncate(int handle, off_t size) { return cut(handle, size); }
int ftruncate64(int handle, off_t size) { return cut(handle, size); }

int unlink(const char *path) {
  char whole[PATH_MAX];
  LOCKED;
  if (realpath(path, whole))
    for (int number = 0; number < FILES; number++)
      if (!strcmp(whole, files[number].path)) {
        files[number].size = -1;
        memset(files[number].is_dirty, 0, PAGES);
      }
  int failed = REAL(unlink)(path);
  UNLOCKED;
  return failed;
}
