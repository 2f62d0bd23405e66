// Runs one launch in a process of its own, where a sanitizer may end it: standalone KERNEL.so < job > arrays
//
// The job and the answer are what execute.py writes and reads: plain structs, each followed by its bytes.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>
#include <sanitizer/asan_interface.h>

#include "module.h"

extern "C" void hostcuda_launch(const hostcuda::Launch* what);

namespace {

constexpr std::size_t kGuard = 4096;    // bytes on either side of an array that end the process when touched
constexpr std::size_t kAlignment = 256; // of a GPU's allocations

struct Job {
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t seed;
    uint64_t arguments;
};

struct Argument {
    uint64_t is_array;
    uint64_t size;         // of the bytes that follow
    uint64_t misalignment; // of the first of them
    uint64_t offset;       // of the byte that the kernel's pointer points at
};

void read(void* to, std::size_t size)
{
    if (fread(to, 1, size, stdin) != size) {
        fprintf(stderr, "the job ends too early\n");
        exit(1);
    }
}

// Memory whose neighbours are poisoned.
char* guarded(const Argument& argument)
{
    const std::size_t front = kGuard + argument.misalignment, whole = front + argument.size + kGuard;
    char* const memory =
        static_cast<char*>(aligned_alloc(kAlignment, (whole + kAlignment - 1) / kAlignment * kAlignment));
    __asan_poison_memory_region(memory, front);
    __asan_poison_memory_region(memory + front + argument.size, kGuard);
    return memory + front;
}

} // namespace

int main(int, char** argv)
{
    void* const library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const auto describe = reinterpret_cast<const hostcuda::Module* (*)()>(dlsym(library, "hostcuda_module"));
    const hostcuda::Module* const kernel = describe();
    Job job;
    read(&job, sizeof(job));
    if (job.arguments != kernel->parameter_count) {
        fprintf(stderr, "the kernel takes %u arguments\n", kernel->parameter_count);
        return 1;
    }
    std::vector<Argument> arguments(job.arguments);
    std::vector<char*> memory, pointers(job.arguments);
    std::vector<void*> addresses;
    for (std::size_t i = 0; i < job.arguments; ++i) {
        read(&arguments[i], sizeof(Argument));
        memory.push_back(guarded(arguments[i]));
        read(memory[i], arguments[i].size);
        const hostcuda::Parameter& parameter = kernel->parameters[i];
        if (arguments[i].is_array ? !parameter.pointer : parameter.size != arguments[i].size) { // or a null
            fprintf(stderr, "argument %zu is not what the kernel takes\n", i);
            return 1;
        }
        pointers[i] = memory[i] + arguments[i].offset;
        addresses.push_back(arguments[i].is_array ? static_cast<void*>(&pointers[i]) : memory[i]);
    }
    char message[4096];
    hostcuda::Launch launch{kernel, addresses.data(), {}, {}, job.seed, message, sizeof(message)};
    for (int axis = 0; axis < 3; ++axis) {
        launch.grid[axis] = job.grid[axis];
        launch.block[axis] = job.block[axis];
    }
    hostcuda_launch(&launch);
    if (message[0]) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    for (std::size_t i = 0; i < job.arguments; ++i) {
        if (!arguments[i].is_array)
            continue;
        fputc(int(kernel->parameters[i].pointer), stdout);
        fwrite(memory[i], 1, arguments[i].size, stdout);
    }
}
