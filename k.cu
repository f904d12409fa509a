// N elements that move in one access
template <class T, int N>
struct alignas(sizeof(T) * N) emmy_vector { T at[N]; };

template <int N, class To, class From>
__device__ __forceinline__ void emmy_store(To* to, const From* from) {
  emmy_vector<To, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) v.at[i] = static_cast<To>(from[i]);
  *reinterpret_cast<emmy_vector<To, N>*>(to) = v;
}

__device__ __forceinline__ unsigned emmy_shared(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

// what cuTensorMapEncodeTiled writes
struct __align__(64) emmy_map { unsigned long long words[16]; };

__device__ __forceinline__ void emmy_init_barrier(const void* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(emmy_shared(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void emmy_fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void emmy_expect_bytes(const void* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(emmy_shared(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void emmy_arrive(const void* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(emmy_shared(barrier)) : "memory");
}

__device__ __forceinline__ void emmy_wait_barrier(const void* barrier, int parity) {
  int done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(emmy_shared(barrier)), "r"(parity) : "memory");
  } while (!done);
}

__device__ __forceinline__ void emmy_prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

__device__ __forceinline__ void emmy_copy_tile_2(const void* map, const void* tile, int c0, int c1, const void* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%0, {%3, %2}], [%4];" :: "l"(map), "r"(emmy_shared(tile)), "r"(c0), "r"(c1), "r"(emmy_shared(barrier)) : "memory");
}

template <int N>
__device__ __forceinline__ void emmy_grow_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N) : "memory"); }

template <int N>
__device__ __forceinline__ void emmy_shrink_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N) : "memory"); }

__device__ __forceinline__ void emmy_fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void emmy_commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void emmy_wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

// keeps uses of these registers on their side of what comes before and after
template <class T, int N>
__device__ __forceinline__ void emmy_pin(T (&a)[N]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(a[i]) :: "memory");
  } else {
    unsigned* const r = reinterpret_cast<unsigned*>(a);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) asm volatile("" : "+r"(r[i]) :: "memory");
  }
}

// describes a tile with rows of 128 bytes, swizzled by 128; chunk: bytes from 64 columns to the next 64
__device__ __forceinline__ unsigned long long emmy_tile(const void* at, int chunk) {
  return 1ull << 62 | 64ull << 32 | static_cast<unsigned long long>(chunk >> 4) << 16 | emmy_shared(at) >> 4;
}

__device__ __forceinline__ void emmy_product_tf32_128_kk(float* sum, unsigned long long left, unsigned long long right, bool accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
    "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
    "%64, %65, p, 1, 1; }"
    : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7]),
      "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]),
      "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
      "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31]),
      "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]), "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]),
      "+f"(sum[40]), "+f"(sum[41]), "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
      "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]), "+f"(sum[54]), "+f"(sum[55]),
      "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]), "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63])
    : "l"(left), "l"(right), "r"(static_cast<int>(accumulate)));
}

extern "C" __global__ void __launch_bounds__(384, 1) contraction_fa4d2a516ab6(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ linear, const __grid_constant__ emmy_map map_2, const __grid_constant__ emmy_map map_4) {
  const int thread = threadIdx.x;
  const int block_x = blockIdx.x;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  float* const tile_1 = reinterpret_cast<float*>(shared_memory + 0);
  float* const tile_3 = reinterpret_cast<float*>(shared_memory + 131072);
  long long* const barrier_0 = reinterpret_cast<long long*>(shared_memory + 196608);
  if (thread == 0) {
    emmy_prefetch_map(&map_2);
    emmy_prefetch_map(&map_4);
#pragma unroll
    for (int s_7 = 0; s_7 < 4; ++s_7) {
      emmy_init_barrier(&barrier_0[s_7], 2);
      emmy_init_barrier(&barrier_0[s_7 + 4], 8);
    }
    emmy_fence_barriers();
  }
  __syncthreads();
  if (thread < 128) {
    emmy_shrink_registers<40>();
    if (thread == 0) {
      int slot_8 = 0;
      int phase_9 = 0;
      for (int tile_10 = block_x; tile_10 < 512; tile_10 += 132) {
        const int first_11 = tile_10 / 256 * 8;
        const int inside_12 = tile_10 % 256;
        const int m_13 = (first_11 + inside_12 % 8) * 256;
        const int n_14 = inside_12 / 8 * 128;
        for (int step_15 = 0; step_15 < 128; ++step_15) {
          emmy_wait_barrier(&barrier_0[slot_8 + 4], phase_9 ^ 1);
          emmy_expect_bytes(&barrier_0[slot_8], 32768);
          const int k_16 = step_15 * 32;
          emmy_copy_tile_2(&map_2, &tile_1[slot_8 * 8192], m_13, k_16, &barrier_0[slot_8]);
          slot_8 = slot_8 + 1;
          if (slot_8 == 4) {
            slot_8 = 0;
            phase_9 = phase_9 ^ 1;
          }
        }
      }
    }
    if (thread == 32) {
      int slot_17 = 0;
      int phase_18 = 0;
      for (int tile_19 = block_x; tile_19 < 512; tile_19 += 132) {
        const int first_20 = tile_19 / 256 * 8;
        const int inside_21 = tile_19 % 256;
        const int m_22 = (first_20 + inside_21 % 8) * 256;
        const int n_23 = inside_21 / 8 * 128;
        for (int step_24 = 0; step_24 < 128; ++step_24) {
          emmy_wait_barrier(&barrier_0[slot_17 + 4], phase_18 ^ 1);
          emmy_expect_bytes(&barrier_0[slot_17], 16384);
          const int k_25 = step_24 * 32;
          emmy_copy_tile_2(&map_4, &tile_3[slot_17 * 4096], n_23, k_25, &barrier_0[slot_17]);
          slot_17 = slot_17 + 1;
          if (slot_17 == 4) {
            slot_17 = 0;
            phase_18 = phase_18 ^ 1;
          }
        }
      }
    }
  } else {
    emmy_grow_registers<232>();
    const int group_26 = thread / 128 - 1;
    const int thread_27 = thread % 128;
    const int warp_28 = thread_27 / 32;
    const int lane_29 = thread % 32;
    float sum_5[128];
    int slot_30 = 0;
    int phase_31 = 0;
    int before_32 = 0;
    for (int tile_33 = block_x; tile_33 < 512; tile_33 += 132) {
      const int first_34 = tile_33 / 256 * 8;
      const int inside_35 = tile_33 % 256;
      const int m_36 = (first_34 + inside_35 % 8) * 256;
      const int n_37 = inside_35 / 8 * 128;
      const int row_38 = group_26 * 128 + warp_28 * 16 + lane_29 / 4;
      const int column_39 = lane_29 % 4 * 2;
      emmy_pin(sum_5);
      emmy_fence_products();
      for (int step_40 = 0; step_40 < 128; ++step_40) {
        emmy_wait_barrier(&barrier_0[slot_30], phase_31);
        emmy_fence_products();
#pragma unroll
        for (int q_41 = 0; q_41 < 4; ++q_41) {
#pragma unroll
          for (int i_42 = 0; i_42 < 2; ++i_42) {
#pragma unroll
            for (int j_43 = 0; j_43 < 1; ++j_43) {
              emmy_product_tf32_128_kk(&sum_5[(i_42 + j_43) * 64], emmy_tile(&tile_1[slot_30 * 8192 + (q_41 / 4 * 8192 + q_41 % 4 * 8) + (group_26 * 128 + i_42 * 64) * 32], 16), emmy_tile(&tile_3[slot_30 * 4096 + (q_41 / 4 * 4096 + q_41 % 4 * 8) + j_43 * 128 * 32], 16), 0 < step_40 || 0 < q_41);
            }
          }
        }
        emmy_commit_products();
        emmy_wait_products<1>();
        if (lane_29 == 0 && 0 < step_40) {
          emmy_arrive(&barrier_0[before_32 + 4]);
        }
        before_32 = slot_30;
        slot_30 = slot_30 + 1;
        if (slot_30 == 4) {
          slot_30 = 0;
          phase_31 = phase_31 ^ 1;
        }
      }
      emmy_wait_products<0>();
      emmy_pin(sum_5);
      if (lane_29 == 0) {
        emmy_arrive(&barrier_0[before_32 + 4]);
      }
#pragma unroll
      for (int i_44 = 0; i_44 < 2; ++i_44) {
        const int p_45 = m_36 + (row_38 + (i_44 * 2 / 2 * 64 + i_44 * 2 % 2 * 8));
        const int p_46 = m_36 + (row_38 + ((i_44 * 2 + 1) / 2 * 64 + (i_44 * 2 + 1) % 2 * 8));
#pragma unroll
        for (int j_47 = 0; j_47 < 16; ++j_47) {
          float y_48[4];
          const int p_49 = n_37 + (column_39 + (j_47 * 2 / 2 * 8 + j_47 * 2 % 2));
#pragma unroll
          for (int e_50 = 0; e_50 < 2; ++e_50) {
            y_48[e_50] = sum_5[(i_44 * 2 / 2 * 16 + (j_47 * 2 + e_50) / 2) * 4 + (i_44 * 2 % 2 * 2 + (j_47 * 2 + e_50) % 2)];
          }
          emmy_store<2>(&linear[p_45 * 4096 + p_49], &y_48[0]);
#pragma unroll
          for (int e_51 = 0; e_51 < 2; ++e_51) {
            y_48[e_51 + 2] = sum_5[((i_44 * 2 + 1) / 2 * 16 + (j_47 * 2 + e_51) / 2) * 4 + ((i_44 * 2 + 1) % 2 * 2 + (j_47 * 2 + e_51) % 2)];
          }
          emmy_store<2>(&linear[p_46 * 4096 + p_49], &y_48[2]);
        }
      }
    }
  }
}
