"""Launches that overlap: a kernel lets the next one begin, and waits for those before it.

The next kernel's blocks may begin when every block of this one has let them, or has ended; a wait goes on when all kernels launched before
have ended, and sees what they have written.  A kernel that was not launched early waits for nothing.
(PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.ir.kernel_ir import Bare

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


class LaunchDependents(Bare):
    """The kernel launched next may begin, as far as this block is concerned."""

    syntax = "launch_dependents"
    call = "emmy_launch_dependents();"

    def meaning(self, machine: Machine) -> Step:
        return lambda w: None


class WaitKernels(Bare):
    """Each active thread waits for the kernels launched before: behind it, it may touch late buffers."""

    syntax = "wait_kernels"
    call = "emmy_wait_kernels();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.late |= w.active_of(True)
        return run
