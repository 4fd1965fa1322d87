"""``isomorph export``: a saved model as a directory that another library loads."""

from __future__ import annotations

import json as json_text
from pathlib import Path

from isomorph.cli.network import open_network
from isomorph.errors import IsomorphError, did_you_mean, shorten

FORMATS = ("hf",)


def run(model: str, to: str, out: str, *, json: bool, quiet: bool) -> None:
    """Write the directory and say what loads it."""
    from isomorph.checkpoints.exporting import export_checkpoint

    if to not in FORMATS:
        hints = did_you_mean(to, FORMATS) or [f"--to {' | '.join(FORMATS)}"]
        raise IsomorphError("E_ARGUMENT", f"there is no format {shorten(to)} to export to", hints=hints)
    plan, weights = open_network(model)
    if weights is None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{model} is a definition, which has no weights to export",
            hints=["give a saved model: a .safetensors file or the directory of a run"],
        )
    source = Path(model)
    if Path(out).resolve() == (source if source.is_dir() else source.parent).resolve():
        raise IsomorphError(
            "E_ARGUMENT", f"-o {out} is where the model itself is", hints=["choose another directory"]
        )
    architecture = export_checkpoint(out, plan, weights)
    if json:
        found = {"directory": out, "to": to, "architecture": architecture}
        print(json_text.dumps(found, indent=2))
    elif not quiet:
        print(f'{out}: for transformers.{architecture}.from_pretrained("{out}")')
