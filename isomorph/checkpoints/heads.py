"""What follows an encoder in several families: a pooler, and a classifier whose classes have names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def labels(count: int) -> dict[str, Any]:
    """Names of classes that nobody knows here, as the peer library makes them up."""
    names = {i: f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def observe(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether there is a pooler, and how many classes there are."""
    head = shapes.get("classifier.weight", shapes.get("cls_classifier.weight", ()))
    pooler = any(name.startswith("pooler.dense.") for name in shapes)
    return {"pooler": pooler, "num_labels": head[0] if len(head) == 2 else 1}
