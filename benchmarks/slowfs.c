/* A file system that shows a folder, and answers every read late: slowfs FOLDER MICROSECONDS MOUNTPOINT -f
   cc -O2 slowfs.c -o slowfs $(pkg-config --cflags --libs fuse3) */
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *folder;
static long late_us;

static const char *real_path(const char *path, char *out) {
    snprintf(out, PATH_MAX, "%s%s", folder, path);
    return out;
}

static int get_attributes(const char *path, struct stat *found, struct fuse_file_info *file) {
    char real[PATH_MAX];
    return lstat(real_path(path, real), found) ? -errno : 0;
}

static int open_file(const char *path, struct fuse_file_info *file) {
    char real[PATH_MAX];
    int fd = open(real_path(path, real), O_RDONLY);
    file->fh = fd;
    file->keep_cache = 1;  /* as network file systems do while a file stays as it is */
    return fd < 0 ? -errno : 0;
}

static int close_file(const char *path, struct fuse_file_info *file) { return close(file->fh) ? -errno : 0; }

static int read_late(const char *path, char *out, size_t size, off_t at, struct fuse_file_info *file) {
    struct timespec wait = {late_us / 1000000, late_us % 1000000 * 1000};
    nanosleep(&wait, NULL);
    ssize_t got = pread(file->fh, out, size, at);
    return got < 0 ? -errno : (int)got;
}

static int list_folder(const char *path, void *list, fuse_fill_dir_t add, off_t at, struct fuse_file_info *file,
                       enum fuse_readdir_flags flags) {
    char real[PATH_MAX];
    DIR *open = opendir(real_path(path, real));
    if (!open) return -errno;
    for (struct dirent *entry; (entry = readdir(open));) add(list, entry->d_name, NULL, 0, 0);
    closedir(open);
    return 0;
}

static const struct fuse_operations operations = {
    .getattr = get_attributes, .open = open_file, .release = close_file, .read = read_late, .readdir = list_folder};

int main(int count, char **words) {
    if (count < 4) return fprintf(stderr, "slowfs FOLDER MICROSECONDS MOUNTPOINT [FUSE options]\n"), 2;
    folder = words[1], late_us = atol(words[2]), words[2] = words[0];
    return fuse_main(count - 2, words + 2, &operations, NULL);
}
