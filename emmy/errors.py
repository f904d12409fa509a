"""What a user did wrong, and what to do about it."""

from __future__ import annotations


class EmmyError(Exception):
    """An error of the program handed in, not of Emmy: `message` names the offending input, `remedy` says what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}"


class EmmyWarning(UserWarning):
    """What a user may want to mend, though the result is right without."""
