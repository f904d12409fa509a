"""Shared memory: loads and stores of elements and of aligned vectors.  A barrier must stand between a write and another thread's access."""

from __future__ import annotations

from emmy.instructions.memory import Load, LoadVector, Store, StoreVector
from emmy.ir.kernel_ir import SharedBuffer


class LoadShared(Load):
    """An element of a shared buffer, converted to the register's dtype."""

    space = SharedBuffer
    syntax = "load_shared {var:new} = {buffer}[{index}]< if {guard}>< else {otherwise}>"


class LoadSharedVector(LoadVector):
    """A vector of a shared buffer, converted to the array's dtype."""

    space = SharedBuffer
    syntax = "load_shared_vector {array}[{offset} +: {width}] = {buffer}[{index}]"


class StoreShared(Store):
    """An element of a shared buffer, converted to its dtype."""

    space = SharedBuffer
    syntax = "store_shared {buffer}[{index}] = {value}< if {guard}>"


class StoreSharedVector(StoreVector):
    """A vector of a shared buffer, converted to its dtype."""

    space = SharedBuffer
    syntax = "store_shared_vector {buffer}[{index}] = {array}[{offset} +: {width}]"
