// What the words of CUDA answer, one word per function.
//
//   input   (threads, 2)                read
//   output  (threads, answers)          written, each element once
constexpr int answers = 18;

extern "C" __global__ void words(const unsigned* __restrict__ input, unsigned* __restrict__ output)
{
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned a = input[2 * thread], b = input[2 * thread + 1];
    unsigned* const answer = output + answers * thread;
    const unsigned all = ~0u;
    answer[0] = __umulhi(a, b);
    answer[1] = __umul64hi((unsigned long long)(a) << 32 | b, (unsigned long long)(b) << 32 | a) >> 32;
    answer[2] = __funnelshift_r(a, b, b);
    answer[3] = __funnelshift_l(a, b, b);
    answer[4] = __byte_perm(a, b, 0x7362);
    answer[5] = __popc(a);
    answer[6] = __ffs(a & ~15u);
    answer[7] = __clz(a & 0xfff);
    answer[8] = __vadd4(a, b);
    answer[9] = min(a, b);
    answer[10] = max(int(a), int(b));
    answer[11] = __shfl_sync(all, a, 3, 8);
    answer[12] = __shfl_up_sync(all, a, 1);
    answer[13] = __shfl_down_sync(all, a, 2);
    answer[14] = __shfl_xor_sync(all, a, 4);
    answer[15] = __ballot_sync(all, a & 1);
    answer[16] = __any_sync(all, a % 32 == 0);
    answer[17] = __all_sync(all, a % 32 != 1);
}
