/* Which of the entries this processor can run. */

const char *qkgcc_source = SOURCE_DIGEST;

const char *qkgcc_entry(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return "qkgcc_steered_v4";
    if (__builtin_cpu_supports("x86-64-v3")) return "qkgcc_steered_v3";
#endif
    return "qkgcc_steered";
}
