"""What is known while one definition is read: filled by whoever reads a statement, in whichever way."""

from __future__ import annotations

from collections.abc import Mapping

from isomorph.errors import IsomorphError
from isomorph.language.graph import Call, Contract, Reference
from isomorph.language.names import IsOperator, OutputsOf, check_tensor_name
from isomorph.language.source import Source


class Reading:
    """The state of reading one definition."""

    def __init__(
        self,
        source: Source,
        limits: Mapping[str, int],
        given: tuple[str, ...] | None,
        is_operator: IsOperator | None,
        outputs_of: OutputsOf | None = None,
    ) -> None:
        self.outputs_of = outputs_of
        self.source, self.limits, self.given, self.is_operator = source, limits, given, is_operator
        self.largest, self.max_nodes = limits["max_dimension"], limits["max_nodes"]
        self.locate = source.locate  # one bound method for all calls
        self.inputs: list[Contract] = []
        self.declared: tuple[str, ...] = ()
        self.inputs_open = True  # until the first statement that declares no input
        self.calls: list[Call] = []
        self.outputs: list[Contract] = []
        self.after_output = False
        self.bindings: dict[str, Reference] = {}
        self.current: Reference | None = None
        self.names: set[str] = set()
        self.indices: list[int] = []  # of the loops around, outermost first

    def may_name(self, name: str) -> bool:
        """Whether a tensor may have this name."""
        try:
            check_tensor_name(name, self.is_operator)
        except IsomorphError:
            return False
        return True

    def close_inputs(self) -> None:
        """Bind the inputs; from here on none can be declared."""
        self.inputs_open = False
        stated = tuple(contract.name for contract in self.inputs)
        given = self.given
        # A caller's lone shape has no name of its own, and arrives here as ("x",).
        if stated and given and stated != given and not (len(stated) == 1 and given == ("x",)):
            raise IsomorphError(
                "E_BINDING",
                f"the definition declares the inputs {', '.join(stated)}, the call gives {', '.join(given)}",
                self.inputs[0].location,
                ["leave one of the two out, or name the same inputs in the same order"],
            )
        for name in given or ():
            check_tensor_name(name, self.is_operator)
        self.declared = stated or given or ("x",)
        for index, name in enumerate(self.declared):
            self.bindings[name] = Reference(-1, index)
        self.current = Reference(-1, 0)
