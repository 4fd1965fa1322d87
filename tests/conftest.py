"""Settings of every test: JAX computes on the CPU, whatever else the machine has."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
