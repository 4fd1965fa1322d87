"""The reference backend's public door: a plan as a NumPy function in float64."""

from isomorph.backends.reference.build import ReferenceNetwork, build, run

__all__ = ["ReferenceNetwork", "build", "run"]
