"""`emmy calibrate`: measure this machine's GPU for the cost model."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from emmy.cli import options
from emmy.errors import EmmyError

Output = Annotated[Path | None, typer.Option("-o", metavar="FILE.toml", show_default=False, help="The file to write. By default NAME.toml "
                                             "in extract/hardware, where the cost model finds it.")]
Name = Annotated[str | None, typer.Option(help="A short name for the GPU. By default from what its driver calls it.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def command(output: Output = None, name: Name = None, force: Force = False, json: options.Json = None) -> None:
    """Measure this machine's GPU and write its file of rates and limits, by which rows are priced.  Takes some seconds."""
    import dataclasses

    import extract.hardware
    from emmy.runtime.launch import cuda_device
    from emmy.tune import calibrate

    device = cuda_device("cuda")
    import torch

    properties = torch.cuda.get_device_properties(device)
    name = calibrate.short(name or extract.hardware.named_like(properties.name))
    path = output or Path(extract.hardware.__file__).parent / f"{name}.toml"
    if path.exists() and not force:
        raise EmmyError(f"{path} is there already", "write elsewhere with -o, or over it with --force")
    out = options.console(stderr=json is not None and str(json) == "-")
    with out.status("measuring") as status:
        gpu = calibrate.measured(name, properties, watch=lambda field: status.update(f"measuring {field}"))
    path.write_text(calibrate.text(gpu, properties.name, datetime.date.today()))
    for field, share in calibrate.beside(gpu).items():
        out.print(f"{field} is {share:.2f} times what extract/hardware says of {gpu.target}")
    typer.echo(f"{path}: {options.counted(len(dataclasses.fields(gpu)), 'field')}", err=json is not None)
    if json is not None:
        options.write_json(json, dataclasses.asdict(gpu))
