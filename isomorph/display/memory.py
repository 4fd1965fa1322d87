"""What a comparison of backends will hold in memory, and what the machine has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from isomorph.display.cost import cost
from isomorph.plan import DTYPE_BYTES, Plan

# Bytes per parameter: the drawn weights; in double precision the true gradients, parameters to differentiate by, their
# gradients with rounding, and these as NumPy's; and the difference of the largest.
PARAMETER_BYTES = 4 + 8 + 8 + 8 + 8 + 4
# Bytes per element that a primitive makes: the reference's, what a backward pass in double precision keeps, and
# with rounding the factors beside it.
ACTIVATION_BYTES = 8 + 8 + 8


def verification_bytes(plan: Plan, sizes: Mapping[str, int]) -> int:
    """About how many bytes ``verify`` holds at once for a plan at these sizes."""
    activations = cost(plan, sizes).total.activation_bytes // DTYPE_BYTES[plan.dtype]
    return plan.parameter_count * PARAMETER_BYTES + activations * ACTIVATION_BYTES


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not tell.

    Linux tells it in ``/proc/meminfo``, memory that caches would give back included, and a container's limit
    in ``/sys/fs/cgroup``; elsewhere the machine's whole memory stands in for it.
    """
    limits = [size for size in (_free_bytes(), _container_bytes()) if size is not None]
    return min(limits, default=None)


def _free_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _container_bytes() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
