"""Global memory: loads and stores of elements and of aligned vectors."""

from __future__ import annotations

from emmy.instructions.memory import Load, LoadVector, Store, StoreVector
from emmy.ir.kernel_ir import GlobalBuffer, Kernel


class LoadGlobal(Load):
    """An element of a global buffer, converted to the register's dtype."""

    space = GlobalBuffer
    syntax = "load_global {var:new} = {buffer}[{index}]< if {guard}>< else {otherwise}>"

    def traffic(self, kernel: Kernel) -> float:
        return kernel.types[self.buffer].bytes


class LoadGlobalVector(LoadVector):
    """A vector of a global buffer, converted to the array's dtype."""

    space = GlobalBuffer
    syntax = "load_global_vector {array}[{offset} +: {width}] = {buffer}[{index}]"

    def traffic(self, kernel: Kernel) -> float:
        return self.width * kernel.types[self.buffer].bytes


class StoreGlobal(Store):
    """An element of a global buffer, converted to its dtype."""

    space = GlobalBuffer
    syntax = "store_global {buffer}[{index}] = {value}< if {guard}>"

    def traffic(self, kernel: Kernel) -> float:
        return kernel.types[self.buffer].bytes


class StoreGlobalVector(StoreVector):
    """A vector of a global buffer, converted to its dtype."""

    space = GlobalBuffer
    syntax = "store_global_vector {buffer}[{index}] = {array}[{offset} +: {width}]"

    def traffic(self, kernel: Kernel) -> float:
        return self.width * kernel.types[self.buffer].bytes
