"""``isomorph check``: one line per file."""

from __future__ import annotations

import json as json_text
import sys
from typing import Any

from isomorph.cli.network import Contracts, open_network
from isomorph.cli.show import contract
from isomorph.errors import IsomorphError


def run(files: list[str], contracts: Contracts, *, json: bool, quiet: bool) -> None:
    """Resolve every file. Errors go to stderr and make the exit status 2."""
    results = [_check(file, contracts) for file in files]
    if json:
        print(json_text.dumps([result for result, _ in results], indent=2))
    for result, error in results:
        if error is not None:
            # A place names the file; without one, say which of several is meant.
            print(error if error.location is not None else f"{result['file']}: {error}", file=sys.stderr)
        elif not json and not quiet:
            print(f"{result['file']}: {result['contract']}, {result['parameter_count']:,} parameters")
    if any(error is not None for _, error in results):
        sys.exit(2)


def _check(file: str, contracts: Contracts) -> tuple[dict[str, Any], IsomorphError | None]:
    try:
        plan = open_network(file, contracts).plan
    except IsomorphError as error:
        place = error.location
        return {
            "file": file,
            "ok": False,
            "code": error.code,
            "message": error.message,
            "line": place.line if place is not None else None,
            "column": place.column if place is not None else None,
            "hints": list(error.hints),
        }, error
    return {
        "file": file,
        "ok": True,
        "contract": contract(plan),
        "parameter_count": plan.parameter_count,
    }, None
