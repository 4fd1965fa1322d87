"""``isomorph convert``: a saved model's weights in a file that one framework's users load.

Every file is safetensors of arrays alone, without the plan:

- ``torch``: a state dictionary, for ``model.load_state_dict(safetensors.torch.load_file(path))``. Tied parameters are
  there under each of their names: modules of PyTorch's own, such as exported source, want both.
- ``linen``: the flattened variables, ``params.n0.kernel`` or, of what is frozen, ``frozen.n0.kernel``, for
  ``module.apply(flax.traverse_util.unflatten_dict(safetensors.flax.load_file(path), sep="."), x)``.
- ``nnx``: the flattened parameters, ``n0.kernel`` and so on, for
  ``nnx.update(model, flax.traverse_util.unflatten_dict(safetensors.flax.load_file(path), sep="."))``.

No framework is needed to write any of them.
"""

from __future__ import annotations

import json as json_text

from isomorph.backends.available import able, part
from isomorph.cli.network import inputs_of, model_file, open_network
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.weights.file import tensor_content
from isomorph.writing.marks import Kind, tensors_marked
from isomorph.writing.rule import file_target

MARK = "isomorph.convert"
CONVERTED = Kind("file of converted weights", (".safetensors",), tensors_marked(MARK))


def run(model: str, to: str, out: str | None, *, force: bool, json: bool, quiet: bool) -> None:
    """Write the file, beside the model unless told where, and say what is in it."""
    frameworks = able("convert")
    if to not in frameworks:
        hints = did_you_mean(to, frameworks) or [f"--to {' | '.join(frameworks)}"]
        raise IsomorphError("E_ARGUMENT", f"there is no framework {shorten(to)} to convert to", hints=hints)
    plan, weights = open_network(model)
    if weights is None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{model} is a definition, which has no weights to convert",
            hints=["give a saved model: a .safetensors file or the directory of a run"],
        )
    source = model_file(model)
    path = source.with_name(f"{source.stem}.{to}.safetensors") if out is None else out
    target = file_target(path, CONVERTED, "--out", inputs=inputs_of(model), force=force)
    layout = part(to, "tensors")
    arrays = layout.tensors(plan, weights)
    target.write(tensor_content(arrays, {"format": layout.FORMAT, MARK: to}))
    size = sum(array.nbytes for array in arrays.values())
    if target.streams:
        return
    if json:
        print(
            json_text.dumps({"file": target.name, "to": to, "arrays": len(arrays), "bytes": size}, indent=2)
        )
    elif not quiet:
        print(f"{target.name}: {len(arrays)} arrays for {to}, {size:,} bytes")
