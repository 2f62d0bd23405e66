// The one translation unit of a kernel: the kernel itself, and a description of it.
//
// Nothing else is linked into the library, so its zero-initialised data is the kernel's shared memory.
#include HOSTCUDA_SOURCE

#include <utility>

#include "module.h"

extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace hostcuda {

template <auto kernel> struct Kernel;

template <typename... Arguments, void (*kernel)(Arguments...)> struct Kernel<kernel> {
    static constexpr uint32_t sizes[] = {sizeof(Arguments)...};

    static void call(void** arguments) { call(arguments, std::index_sequence_for<Arguments...>()); }

    // The arguments lie in no array of the launch, so reading them is not observed.
    template <std::size_t... indices>
    [[gnu::no_sanitize("thread")]] static void call(void** arguments, std::index_sequence<indices...>)
    {
        kernel(*static_cast<std::remove_cv_t<Arguments>*>(arguments[indices])...);
    }

    static constexpr Module module{&call, sizes, sizeof...(Arguments), __ehdr_start, __bss_start, _end};
};

} // namespace hostcuda

extern "C" __attribute__((visibility("default"))) const hostcuda::Module* hostcuda_module()
{
    return &hostcuda::Kernel<&HOSTCUDA_SYMBOL>::module;
}

#if defined(__SANITIZE_ADDRESS__)
// The process is older than its sanitizers.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options()
{
    return "verify_asan_link_order=0";
}
#endif
