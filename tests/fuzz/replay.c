/* Runs a fuzz target's entry point over every file of the folders named, so that the corpus is part of each test run. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    size_t got = data ? fread(data, 1, (size_t)size, file) : 0;
    fclose(file);
    LLVMFuzzerTestOneInput(data, got);
    free(data);
    return 0;
}

static int replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    if (!dir)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (replay_file(path) == 0)
            count++;
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay_folder(argv[i]);
        if (n < 0) {
            fprintf(stderr, "cannot read the corpus folder %s\n", argv[i]);
            return 1;
        }
        count += n;
    }
    printf("%d inputs replayed\n", count);
    return count > 0 ? 0 : 1;
}
