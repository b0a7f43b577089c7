/* Which of the entries this processor can run, of those that the compiler could make (HAVE_...). */

const char *qkgcc_source = SOURCE_DIGEST;

const char *qkgcc_entry(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(HAVE_V4)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "qkgcc_steered_v4";
#endif
#if defined(HAVE_V3)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return "qkgcc_steered_v3";
#endif
#endif
    return "qkgcc_steered";
}
