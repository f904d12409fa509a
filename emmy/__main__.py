"""`python -m emmy`."""

from __future__ import annotations

from emmy.cli import main

if __name__ == "__main__":
    main()
