"""What a user did wrong, said so that they can mend it."""

from __future__ import annotations


class EmmyError(Exception):
    """An error of the user's making: `message` names the input at fault, `remedy` what to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message
