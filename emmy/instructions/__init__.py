"""The statements of Kernel IR, one module a family: fields and text, rules, CUDA, meaning for the simulator, cost."""

from emmy.instructions.barrier import Barrier
from emmy.instructions.bulk_copy import CommitStores, CopyBulk, CopyTile, FenceAsync, PrefetchMap, StoreTile, WaitStores
from emmy.instructions.cluster import ArrivePeer, ClusterArrive, ClusterWait, StoreCluster, StoreClusterVector
from emmy.instructions.control import For, If, While
from emmy.instructions.cp_async import CommitCopies, CopyAsync, WaitCopies
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector, StoreGlobal, StoreGlobalVector
from emmy.instructions.grid import LaunchDependents, WaitKernels
from emmy.instructions.ldmatrix import LoadMatrix
from emmy.instructions.mbarrier import Arrive, ExpectBytes, FenceBarriers, InitBarrier, WaitBarrier
from emmy.instructions.mma import MultiplyMatrices
from emmy.instructions.registers import Assign, Declare, DeclareArray, Let, SetElement
from emmy.instructions.shared_memory import LoadShared, LoadSharedVector, StoreShared, StoreSharedVector
from emmy.instructions.shuffle import FirstLane, ShuffleUp, ShuffleXor
from emmy.instructions.signal import AwaitSignal, GiveSignal
from emmy.instructions.status import Await, Publish, TakeTicket
from emmy.instructions.stmatrix import StoreMatrices
from emmy.instructions.warpgroup import NamedBarrier, SetRegisters, SyncWarp
from emmy.instructions.wgmma import CommitProducts, FenceProducts, MultiplyWarpgroup, MultiplyWarpgroupRegisters, WaitProducts
from emmy.instructions.window_copy import CopyWindows

__all__ = ["Arrive", "ArrivePeer", "Assign", "Await", "AwaitSignal", "Barrier", "ClusterArrive", "ClusterWait", "CommitCopies",
    "CommitProducts", "CommitStores", "CopyAsync", "CopyBulk", "CopyTile", "CopyWindows", "Declare", "DeclareArray", "ExpectBytes",
    "FenceAsync", "FenceBarriers", "FenceProducts", "FirstLane", "For", "GiveSignal", "If", "InitBarrier", "LaunchDependents", "Let",
    "LoadGlobal", "LoadGlobalVector", "LoadMatrix", "LoadShared", "LoadSharedVector", "MultiplyMatrices", "MultiplyWarpgroup",
    "MultiplyWarpgroupRegisters", "NamedBarrier", "PrefetchMap", "Publish", "SetElement", "SetRegisters", "ShuffleUp", "ShuffleXor",
    "StoreCluster", "StoreClusterVector", "StoreGlobal", "StoreGlobalVector", "StoreMatrices", "StoreShared", "StoreSharedVector",
    "StoreTile", "SyncWarp", "TakeTicket", "WaitBarrier", "WaitCopies", "WaitKernels", "WaitProducts", "WaitStores", "While"]
