"""What a scheduled kernel costs: features in, seconds out.

A roofline with the corrections that choose between rows: memory needs enough bytes in flight, a block's dependent steps
are a chain that waves of blocks repeat, and rows read twice come from a cache only while what all blocks read again fits it.  The
constants were fitted to an H200 (`benchmarks/results/h200`); the model ranks, and measured times outrank it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, pow
from typing import NamedTuple

from extract.hardware import Hardware

STEP_US = 0.6               # one dependent round of global loads
NESTED_STEP_US = STEP_US / 4    # one step of a loop inside another's: some of their loads are under way together
JOIN_US = 0.2               # one meeting of the warps of a block
WARP_US = 0.002             # one warp more to begin, of the only block of a multiprocessor
L1_BYTES = 160 << 10        # of a multiprocessor, for data that its blocks read again
L1_BYTES_A_CYCLE = 128
SLOTS_A_CYCLE = 128         # fp32 instructions that a multiprocessor issues
CLOCK_GHZ = 1.7
TENSOR_SHARE = 0.6          # of the rate of tensor cores: what instructions of one warp reach
BULK_SHARE = 1.3            # what those of four warps reach whose operands copy engines bring, before long kernels meet the power limit
L2_TO_DRAM = 1.4            # bandwidth of the second-level cache over device memory's, for data that is there
L2_SHARE = 0.7              # of the second-level cache, for what all blocks together read again
IN_FLIGHT = 32 << 10        # bytes a multiprocessor must have under way to fill its share of the memory's bandwidth
WARPS = 16                  # that a multiprocessor needs to hide arithmetic latency


class Features(NamedTuple):
    """What a kernel does with a row.

    `dram_bytes`: each tensor once.  `l2_bytes`: what multiprocessors ask of the second-level cache.  `reread_bytes`: what blocks
    read again, `block_bytes` of it by one block.  `l1_bytes`: what threads ask for, in whole sectors.  `slots`: fp32 instruction
    slots of all threads.  `shared_words`: 4-byte shared-memory words read by all threads.  `steps`, `joins`: dependent load
    rounds and barriers of one block.  `access`: bytes a thread has in flight.  `tensor_flops`: operations of tensor cores, counted as of
    halves (one of tf32 as two), at `tensor_share` of their rate.  `bulk_bytes`: what copy engines bring to shared memory, if they do.
    `start_us`: what passes before the first product and after the last.  `independent`: how many warps one counts for whose instructions
    do not wait for each other.
    """

    dram_bytes: float
    l2_bytes: float
    reread_bytes: float
    block_bytes: float
    l1_bytes: float
    slots: float
    shared_words: float
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    steps: float
    joins: float
    access: float
    tensor_flops: float = 0
    tensor_share: float = TENSOR_SHARE
    bulk_bytes: float = 0
    start_us: float = 0
    independent: float = 1


def product_seconds(gpu: Hardware, bytes: int) -> float:
    """What one product of two elements of so many bytes takes of the whole GPU's tensor cores at best."""
    return bytes / (gpu.tensor_bf16_TFLOPs * 1e12 * (BULK_SHARE if gpu.bulk_TBs else TENSOR_SHARE))


def seconds_beside(parts: Sequence[Features], again: float, gpu: Hardware) -> float:
    """The predicted time of one launch of kernels of as many threads.  A kernel whose blocks fill the GPU leaves the others no room: it
    adds its own time, and one with fewer blocks than the GPU holds the share that it fills."""
    launch = gpu.launch_us * 1e-6
    kept = sum((seconds(f, gpu) - launch) * min(1.0, f.blocks / (gpu.sms * resident(f, gpu))) for f in parts)
    return max(seconds(beside(parts, again), gpu), launch + kept)


def beside(parts: Sequence[Features], again: float) -> Features:
    """What kernels of as many threads do beside each other in one launch; `again`: bytes that several read, of which all but one find them
    in the second-level cache.  Every block has the registers and the shared memory of the largest, and waits as the slowest does."""
    columns = [*zip(*parts, strict=True)]
    total, most = Features(*map(sum, columns)), Features(*map(max, columns))
    access = sum(f.access * f.dram_bytes for f in parts) / max(total.dram_bytes, 1)
    return total._replace(dram_bytes=total.dram_bytes - again, block_bytes=most.block_bytes, threads=most.threads, registers=most.registers,
                          shared_bytes=most.shared_bytes, steps=most.steps, joins=most.joins, access=access)


def slot_seconds(gpu: Hardware) -> float:
    """What one fp32 instruction takes of the whole GPU at best."""
    return 1 / (SLOTS_A_CYCLE * gpu.sms * CLOCK_GHZ * 1e9)


def resident(f: Features, gpu: Hardware) -> int:
    """The blocks that a multiprocessor can hold at once."""
    registers = max(f.registers, 16) * ceil(f.threads / 32) * 32
    return max(1, min(gpu.max_threads_per_sm // max(f.threads, 32), gpu.registers_per_sm // registers,
                      gpu.shared_bytes_per_sm // max(f.shared_bytes + 1024, 1), 32))


def seconds(f: Features, gpu: Hardware) -> float:
    """The predicted time of one launch."""
    room = resident(f, gpu)
    share = f.blocks / gpu.sms
    busy = min(share, 1.0)
    held = min(room, ceil(share))                                       # blocks that a multiprocessor has at once
    idle = ceil(share) / share if 1 <= share < 4 * room else 1.0    # the last wave's idle multiprocessors
    bandwidth = gpu.bandwidth_TBs * 1e12
    flight = pow(min(1.0, held * f.threads * f.access / IN_FLIGHT), 0.3)
    spilled = f.reread_bytes if held * f.block_bytes > L1_BYTES else 0.0
    missed = f.reread_bytes if min(f.blocks, held * gpu.sms) * f.block_bytes > L2_SHARE * gpu.l2_MB * 1e6 else 0.0
    # a block's place is free for the next when its last warp ends
    drain = 1 + max(0, f.threads - 256) / 32768 if share > room else 1.0
    memory = max((f.dram_bytes + missed) / bandwidth, (f.l2_bytes + spilled) / bandwidth / L2_TO_DRAM) / (busy * flight) * drain
    hiding = pow(min(1.0, held * f.threads / 32 * f.independent / WARPS), 0.3)
    issue, shared = f.slots / SLOTS_A_CYCLE, f.shared_words / 32                  # shared memory answers beside arithmetic, up to a point
    cycles = max(issue + 0.7 * max(0.0, shared - 0.4 * issue), f.l1_bytes / L1_BYTES_A_CYCLE) / gpu.sms
    tensor = f.tensor_flops / (gpu.tensor_bf16_TFLOPs * 1e12 * f.tensor_share)
    bulk = 0.0
    if f.bulk_bytes:            # copies and products wait for no threads, and half the multiprocessors can fill the memory's bandwidth
        # the last wave's idle multiprocessors leave the others some power
        bulk, hiding, idle = f.bulk_bytes / (gpu.bulk_TBs * 1e12), 1.0, (0.9 * max(ceil(share) / share, 1.0) + 0.1) * busy
        memory *= busy / min(2 * share, 1.0)
    work = max(max(cycles / (CLOCK_GHZ * 1e9), tensor) * idle / (busy * hiding), bulk)
    chain = (f.steps * STEP_US + f.joins * JOIN_US) * 1e-6 * ceil(f.blocks / (gpu.sms * room))
    longest, *others = sorted((memory, work, chain), reverse=True)
    begin = WARP_US * f.threads / 32 if share < 1 else 0.0
    return (gpu.launch_us + f.start_us + begin) * 1e-6 + longest + (0.1 if f.bulk_bytes else 0.2) * sum(others)
