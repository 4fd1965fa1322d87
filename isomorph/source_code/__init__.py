"""Networks as readable source code of a framework, which runs without isomorph.

:func:`write_python` gives the text, :func:`export_python` a directory with it and the weights.
"""

from isomorph.source_code.export import export_python
from isomorph.source_code.write import write_python

__all__ = ["export_python", "write_python"]
