"""What needs a look at all of a source before any of it is packed: learned here, or read from a dry run's JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.remote.url import Location, place_of
from packdata.packing.provenance import PACKER
from packdata.reading import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEY = "first_pass"  # in the JSON of a plan
_HOW = "'--dry-run --json > plan.json' makes one, without --part"


class FirstPass:
    """What was learned of a source, by name, as JSON: here, or by the command that printed the plan.

    Args:
        plan: A file with what ``--dry-run --json`` printed; None to learn.

    Raises:
        SourceError: The file cannot be read, or is no plan of this version.
    """

    def __init__(self, plan: Location | str | None = None) -> None:
        self.plan = None if plan is None else place_of(plan)
        self._identity, self._found = (None, {}) if self.plan is None else _read(self.plan)

    def get(self, name: str, learn: Callable[[], Any]) -> Any:
        """Return what is called ``name``: of the plan, or learned.

        Raises:
            SourceError: The plan does not have it.
        """
        if self._identity is None:
            self._found[name] = learn()
        elif name not in self._found:
            raise SourceError(f"the plan has no {name!r}", str(self.plan), _HOW)
        return self._found[name]

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raise SourceError if the plan is of other files, or was made with other options."""
        if (was := self._identity) is None:
            return
        now = json.loads(json.dumps(_versioned(identity)))
        differs = [name for name in {**now, **was} if now.get(name, ...) != was.get(name, ...)]
        if differs:
            what = f"the plan is of other files or options ({', '.join(differs[:4])})"
            raise SourceError(what, str(self.plan), _HOW)

    def to_json(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan has of it."""
        about = {"identity": _versioned(identity), "found": self._found}
        return {KEY: about} if self._found else {}


def _versioned(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"packer": PACKER, **identity}


def _read(path: Location) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return of what a plan is, and what was found."""
    text = read_file(path)
    try:
        given = json.loads(text)[KEY]
        return dict(given["identity"]), dict(given["found"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError("the file is not a plan that parts can use", path, _HOW) from error
