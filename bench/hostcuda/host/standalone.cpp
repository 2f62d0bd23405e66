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

enum Kind : uint64_t { kValue, kArray, kFirstOfStruct, kNextOfStruct };

// A value, or an array: that of a pointer, or one of those of a struct of pointers, which follow each other.
struct Argument {
    Kind kind;
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
    std::vector<Argument> arguments(job.arguments);
    std::vector<char*> memory, pointers(job.arguments); // which stay where they are
    std::vector<void*> addresses;
    std::vector<Kind> kinds;
    std::vector<std::size_t> sizes, parameter_of(job.arguments);
    for (std::size_t i = 0; i < job.arguments; ++i) {
        const Argument& argument = arguments[i];
        read(&arguments[i], sizeof(Argument));
        memory.push_back(guarded(argument));
        read(memory[i], argument.size);
        pointers[i] = memory[i] + argument.offset;
        if (argument.kind == kNextOfStruct) {
            sizes.back() += sizeof(char*);
        } else {
            addresses.push_back(argument.kind == kValue ? memory[i] : static_cast<void*>(&pointers[i]));
            sizes.push_back(argument.kind == kValue ? argument.size : sizeof(char*));
            kinds.push_back(argument.kind);
        }
        parameter_of[i] = addresses.size() - 1;
    }
    if (addresses.size() != kernel->parameter_count) {
        fprintf(stderr, "the kernel takes %u arguments\n", kernel->parameter_count);
        return 1;
    }
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        const hostcuda::Parameter& parameter = kernel->parameters[i]; // a pointer may be a value: a null
        if (sizes[i] != parameter.size || kinds[i] == (parameter.pointer ? kFirstOfStruct : kArray)) {
            fprintf(stderr, "argument %zu is not what the kernel takes\n", i);
            return 1;
        }
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
        if (arguments[i].kind == kValue)
            continue;
        fputc(int(kernel->parameters[parameter_of[i]].pointer), stdout);
        fwrite(memory[i], 1, arguments[i].size, stdout);
    }
}
