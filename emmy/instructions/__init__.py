"""The statements of Kernel IR, one module a family: fields and text, rules, CUDA, meaning for the simulator, cost."""

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.cp_async import CommitCopies, CopyAsync, WaitCopies
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector, StoreGlobal, StoreGlobalVector
from emmy.instructions.ldmatrix import LoadMatrix
from emmy.instructions.mma import MultiplyMatrices
from emmy.instructions.registers import Assign, Declare, DeclareArray, Let, SetElement
from emmy.instructions.shared_memory import LoadShared, LoadSharedVector, StoreShared, StoreSharedVector
from emmy.instructions.shuffle import ShuffleUp, ShuffleXor

__all__ = ["Assign", "Barrier", "CommitCopies", "CopyAsync", "Declare", "DeclareArray", "For", "If", "Let", "LoadGlobal",
    "LoadGlobalVector", "LoadMatrix", "LoadShared", "LoadSharedVector", "MultiplyMatrices", "SetElement", "ShuffleUp", "ShuffleXor",
    "StoreGlobal", "StoreGlobalVector", "StoreShared", "StoreSharedVector", "WaitCopies"]
