"""Emmy compiles PyTorch to CUDA; every decision it takes is a rewrite rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emmy.errors import EmmyError
    from emmy.pipeline import Program, compile, compile_snippet

__all__ = ["EmmyError", "Program", "compile", "compile_snippet"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import emmy` loads neither torch nor egglog."""
    if name not in __all__:
        raise AttributeError(f"module 'emmy' has no attribute {name!r}")
    from emmy import errors, pipeline

    return getattr(errors if name == "EmmyError" else pipeline, name)
