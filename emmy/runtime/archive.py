"""Archives of bundles and packs: a manifest and files in a zip, written whole or not at all, equal bytes for equal contents."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from emmy.errors import EmmyError
from emmy.ir.dtype import named
from emmy.runtime.arrays import FOREIGN, element_of, to_numpy


def write(path: str | os.PathLike[str], manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write an archive of files by name, and the manifest as JSON."""
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in ({"manifest.json": json.dumps(manifest, indent=1).encode()} | dict(files)).items():
                    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], kind: str, newest: int, command: str) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """An archive and its manifest, to be read in a `with` block.  EmmyError if there is no such file, it or what the block finds in it is
    no `kind` ("bundle", "pack"), or it has a format above the `newest`; `command` is what makes one."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            if manifest["format"] > newest:
                raise EmmyError(f"{path} has {kind} format {manifest['format']}, and this version reads up to {newest}",
                                f"upgrade emmy, or make the {kind} again")
            yield archive, manifest
    except FileNotFoundError as error:
        raise EmmyError(f"there is no {kind} {path}", f"make it with {command}") from error
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise EmmyError(f"{path} is not a whole {kind}: {error}", f"make it again with {command}, and copy it in binary mode") from error


def npy(x: Any) -> bytes:
    """An array as the bytes of an .npy file; types that NumPy lacks as their bits."""
    file, array = io.BytesIO(), to_numpy(x)
    np.save(file, array.view(f"u{array.itemsize}") if element_of(x).name in FOREIGN else array, allow_pickle=False)
    return file.getvalue()


def array_of(content: bytes, dtype: str) -> np.ndarray:
    """The inverse of `npy` for an array of the IR type named `dtype`."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    return np.asarray(array.view(named(dtype).numpy))
