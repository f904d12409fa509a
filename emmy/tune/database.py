"""What was measured, kept: one SQLite file that several processes may write at once.

A measurement is filed under the kernel's identity, the device and target, the row, the compiler and the math mode.  A later one of the
same key takes the place of an earlier one, whichever arrives first.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import emmy
from emmy.errors import EmmyError
from emmy.runtime.build import default_cache

STATUSES = ("right", "wrong", "crash", "timeout", "compile-error")
OFF = "off"                 # the value of EMMY_TUNE_DB for no database
PATIENCE_S = 30.0           # how long a writer waits for another
KEY = ("identity", "device", "target", "row", "compiler", "math")


class Measurement(NamedTuple):
    """A row of a kernel on a device.  `device`: the GPU's short name, as in extract/hardware.  `us`, `spread_us`: median microseconds and
    quartile distance, None unless `status` is "right".  `error`: relative, against float64.  `note`: what went wrong.  `revision`: of
    Emmy.  `at`: seconds since 1970."""

    identity: str
    device: str
    target: str
    row: str
    compiler: str
    math: str
    status: str
    us: float | None = None
    spread_us: float | None = None
    error: float | None = None
    predicted_us: float | None = None
    note: str = ""
    revision: str = ""
    at: float = 0.0


class Finished(NamedTuple):
    """A search of a kernel's rows that ended: `seconds` it was given, and why it ended."""

    identity: str
    device: str
    compiler: str
    math: str
    seconds: float
    reason: str
    at: float = 0.0


TABLES = {
    "measurements": (Measurement, KEY),
    "searches": (Finished, ("identity", "device", "compiler", "math")),
}
TYPES = {"us": "REAL", "spread_us": "REAL", "error": "REAL", "predicted_us": "REAL", "seconds": "REAL", "at": "REAL"}


def default_path() -> Path | None:
    """Where the database is: $EMMY_TUNE_DB, or tune.db beside the cache of compiled kernels; None where EMMY_TUNE_DB is "off"."""
    given = os.environ.get("EMMY_TUNE_DB", "")
    return None if given == OFF else Path(given) if given else default_cache() / "tune.db"


class Database:
    """The measurements of a file, which is made when first written to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)
            try:
                connection.execute(f"PRAGMA busy_timeout = {round(PATIENCE_S * 1000)}")
                connection.execute("PRAGMA journal_mode = WAL")
                for table, (columns, key) in TABLES.items():
                    spelled = ", ".join(f"{c} {TYPES.get(c, 'TEXT')}" for c in columns._fields)     # type: ignore[attr-defined]
                    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({spelled}, PRIMARY KEY ({', '.join(key)})) WITHOUT ROWID")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise EmmyError(f"the database {self.path} cannot be used: {error}",
                            "give another path in EMMY_TUNE_DB, or export what it holds and remove it") from error

    def _put(self, table: str, entries: Iterable[tuple[Any, ...]]) -> int:
        columns, key = TABLES[table]
        fields = columns._fields        # type: ignore[attr-defined]
        news = ", ".join(f"{f} = excluded.{f}" for f in fields if f not in key)
        statement = (f"INSERT INTO {table} VALUES ({', '.join('?' * len(fields))}) ON CONFLICT DO UPDATE SET {news} "
                     f"WHERE excluded.at > {table}.at")
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            before = connection.total_changes
            connection.executemany(statement, entries)
            connection.execute("COMMIT")
            return connection.total_changes - before

    def _get(self, table: str, wanted: Mapping[str, str | None]) -> Iterator[tuple[Any, ...]]:
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1"
        if not self.path.exists():
            return
        with self._open() as connection:
            yield from connection.execute(f"SELECT * FROM {table} WHERE {where}", tuple(given.values())).fetchall()

    def put(self, *measurements: Measurement) -> int:
        """Keep measurements, dated if they are not; how many were new or later than what was kept."""
        return self._put("measurements", (m if m.at else m._replace(at=time.time()) for m in measurements))

    def get(self, identity: str | None = None, device: str | None = None, math: str | None = None,
            compiler: str | None = None) -> list[Measurement]:
        """The measurements of a kernel, a device, …; all that there are where nothing is given."""
        wanted = {"identity": identity, "device": device, "math": math, "compiler": compiler}
        return sorted(Measurement(*found) for found in self._get("measurements", wanted))

    def finish(self, search: Finished) -> None:
        """Keep that a search ended."""
        self._put("searches", [search if search.at else search._replace(at=time.time())])

    def finished(self, identity: str, device: str, compiler: str, math: str) -> Finished | None:
        """The last search of a kernel's rows that ended, if any did."""
        wanted = {"identity": identity, "device": device, "compiler": compiler, "math": math}
        return next((Finished(*found) for found in self._get("searches", wanted)), None)


def default() -> Database:
    """The database where it usually is; EmmyError if it is switched off."""
    if (path := default_path()) is None:
        raise EmmyError("EMMY_TUNE_DB is off, so that there is no database of measurements", "unset it, or give it a path")
    return Database(path)


# -- as lines of JSON -----------------------------------------------------------------------------------------------
def line(m: Measurement) -> str:
    """A measurement as a line of JSON."""
    return json.dumps({name: value for name, value in m._asdict().items() if value not in (None, "")})


def read(text: str, name: str) -> list[Measurement]:
    """The measurements in lines of JSON; EmmyError names the line of file `name` that is none."""
    found = []
    for k, one in enumerate(text.splitlines(), 1):
        if not one.strip():
            continue
        try:
            m = Measurement(**json.loads(one))
            if not all(isinstance(x, str) for x in m[:7]) or m.status not in STATUSES:
                raise ValueError(f"it has a kernel, device, target, row, compiler, math, and a status of {', '.join(STATUSES)}")
            if m.status == "right" and not isinstance(m.us, int | float):
                raise ValueError("it is right, and has no time")
        except (ValueError, TypeError) as error:
            raise EmmyError(f"{name}, line {k} is no measurement: {error}",
                            "import what emmy tune export or emmy.tune.worker wrote") from error
        found.append(m)
    return found


@cache
def revision() -> str:
    """Emmy's version, and the commit where it runs from a checkout."""
    here = Path(emmy.__file__).parents[1]
    if not (here / ".git").exists():
        return emmy.__version__
    try:
        done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return emmy.__version__
    return f"{emmy.__version__}+{done.stdout.strip()}"
