"""What a definition resolves to, and the doors that resolve it."""

from isomorph.plan.plan import Parameter, Plan
from isomorph.resolver.resolved import ABSENT, DTYPE_BYTES, INPUT_DTYPES, Bound, Node, Value

__all__ = ["ABSENT", "DTYPE_BYTES", "INPUT_DTYPES", "Bound", "Node", "Parameter", "Plan", "Value"]
