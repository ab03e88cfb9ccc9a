"""What needs a look at all of a source before any of it is packed: learned once, and given to parts by a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from packdata.sources.base import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

KEY = "first_pass"  # in the JSON of a plan
_HOW = "'--dry-run --json > plan.json' makes it, without --part"


class FirstPass:
    """What was learned of a source, by name, as JSON: here, or by whoever printed the plan.

    Args:
        plan: A file with what ``--dry-run --json`` printed; None to learn.
        is_part: One part is packed, which does not learn what all would have to.

    Attributes:
        found: What was learned or taken.
    """

    def __init__(self, plan: Path | str | None = None, *, is_part: bool = False) -> None:
        self.plan, self._is_part = plan, is_part
        self.found: dict[str, Any] = {}
        self._given = None if plan is None else _read(plan)

    def get(self, name: str, learn: Callable[[], Any], what: str) -> Any:
        """Return what is called ``name``: of the plan, or learned.

        Raises:
            ValueError: A part is packed without a plan; ``what`` tells why it needs one.
            SourceError: The plan does not have it.
        """
        if self._given is not None:
            if name not in self._given["found"]:
                raise SourceError(f"it does not have {what}", str(self.plan), _HOW)
            self.found[name] = self._given["found"][name]
        elif self._is_part:
            raise ValueError(f"--part needs --plan for {what}, which all parts share: {_HOW}")
        else:
            self.found[name] = learn()
        return self.found[name]

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raise SourceError if the plan is of other files, or was made with other options."""
        if self._given is None:
            return
        now, was = json.loads(json.dumps(identity)), self._given["identity"]
        differs = [name for name in {**now, **was} if now.get(name, ...) != was.get(name, ...)]
        if differs:
            what = f"it was made of other files, or with other options ({', '.join(differs[:4])})"
            raise SourceError(what, str(self.plan), _HOW)

    def to_json(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan has of it."""
        return {KEY: {"identity": dict(identity), "found": self.found}} if self.found else {}


def _read(path: Path | str) -> dict[str, Any]:
    try:
        given = json.loads(read_file(path, str(path)))[KEY]
        return {"identity": dict(given["identity"]), "found": dict(given["found"])}
    except SourceError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            "it is not a plan that has something to tell to parts", path, _HOW
        ) from error
