"""What a scheduled kernel costs: features in, seconds out.

The model is a roofline with three corrections that choose between rows: waves of blocks over multiprocessors, the chain of
dependent steps of one block, and traffic below device memory.  It ranks; measured times outrank it.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from extract.hardware import Hardware

STEP_US = 0.8           # one dependent round of global loads, with the work that hangs on it
JOIN_US = 0.25          # one meeting of the warps of a block
L1_BYTES_A_CYCLE = 128  # of a multiprocessor
CLOCK_GHZ = 1.7
TENSOR_SHARE = 0.6      # of the rate of tensor cores, that instructions of one warp reach
L2_TO_DRAM = 1.4        # bandwidth of the second-level cache over device memory's, for data that is there


class Features(NamedTuple):
    """What a kernel does with a row.

    `dram_bytes`: each tensor once.  `l2_bytes`: what multiprocessors ask for.  `l1_bytes`: what threads ask for, in whole sectors.
    `slots`: fp32 instruction slots of all threads.  `shared_words`: 4-byte shared-memory reads of all threads, conflicts counted.
    `steps`, `joins`: dependent load rounds and barriers of one block.  `access`: bytes of the widest access of a thread.
    `tensor_flops`: operations of tensor cores on halves, those on padding included.
    """

    dram_bytes: float
    l2_bytes: float
    l1_bytes: float
    slots: float
    shared_words: float
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    steps: float
    joins: float
    access: int
    tensor_flops: float = 0


def seconds(f: Features, gpu: Hardware) -> float:
    """The predicted time of one launch."""
    resident = max(1, min(gpu.max_threads_per_sm // max(f.threads, 32), gpu.registers_per_sm // (max(f.registers, 16) * f.threads),
                          gpu.shared_bytes_per_sm // max(f.shared_bytes, 1), 32))
    busy = min(f.blocks, gpu.sms) / gpu.sms
    occupancy = min(1.0, min(resident, ceil(f.blocks / gpu.sms)) * f.threads / 512)     # 16 warps hide most of the latency
    share = f.blocks / gpu.sms
    balance = ceil(share) / share if 1 <= share < resident * 4 else 1.0                 # the last wave's idle multiprocessors
    width = {1: 0.45, 2: 0.6, 4: 0.88, 8: 0.97}.get(f.access, 1.0)
    memory = max(f.dram_bytes / (gpu.bandwidth_TBs * 1e12), f.l2_bytes / (gpu.bandwidth_TBs * 1e12 * L2_TO_DRAM)) / (width * max(busy * occupancy, 1e-3))
    cycles = max(f.slots / 128, f.shared_words / 32, f.l1_bytes / L1_BYTES_A_CYCLE) / gpu.sms
    tensor = f.tensor_flops / (gpu.tensor_bf16_TFLOPs * 1e12 * TENSOR_SHARE) * balance / max(busy * min(1.0, 2 * occupancy), 1e-3)
    work = max(cycles / (CLOCK_GHZ * 1e9) * balance / max(busy * occupancy, 1e-3), tensor)
    chain = (f.steps * STEP_US + f.joins * JOIN_US) * 1e-6 * ceil(f.blocks / (gpu.sms * resident))
    return gpu.launch_us * 1e-6 + max(memory, work, chain) + 0.1 * min(memory, work)
