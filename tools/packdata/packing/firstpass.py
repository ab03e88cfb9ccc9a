"""What needs a look at all of a source before any of it is packed: learned here, or read from a dry run's JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.remote.url import place_of
from packdata.packing.provenance import PACKER
from packdata.sources.base import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

KEY = "first_pass"  # in the JSON of a plan
_HOW = "'--dry-run --json > plan.json' makes one, without --part"


class FirstPass:
    """What was learned of a source, by name, as JSON: here, or by the command that printed the plan.

    Args:
        plan: A file with what ``--dry-run --json`` printed; None to learn.

    Attributes:
        found: What was learned or taken.

    Raises:
        SourceError: The file cannot be read, or is no plan.
        ValueError: Another version has made it.
    """

    def __init__(self, plan: Path | str | None = None) -> None:
        self.plan = None if plan is None else place_of(plan)
        self._given = None if self.plan is None else _read(self.plan)
        self.found: dict[str, Any] = {}

    def get(self, name: str, learn: Callable[[], Any], what: str) -> Any:
        """Return what is called ``name``, and ``what`` in messages: of the plan, or learned.

        Raises:
            SourceError: The plan does not have it.
        """
        if self._given is not None and name not in self._given["found"]:
            raise SourceError(f"the plan does not have {what}", str(self.plan), _HOW)
        self.found[name] = learn() if self._given is None else self._given["found"][name]
        return self.found[name]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise ValueError, that another version has learned it, where what is read of it is not as it should be."""
        try:
            yield
        except (KeyError, TypeError) as error:
            raise _of_another_version(self.plan) from error

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raise SourceError if the plan is of other files, or was made with other options."""
        if self._given is None:
            return
        now, was = json.loads(json.dumps(identity)), self._given["identity"]
        differs = [name for name in {**now, **was} if now.get(name, ...) != was.get(name, ...)]
        if differs:
            what = f"the plan was made of other files, or with other options ({', '.join(differs[:4])})"
            raise SourceError(what, str(self.plan), _HOW)

    def to_json(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan has of it."""
        about = {"packer": PACKER, "identity": dict(identity), "found": self.found}
        return {KEY: about} if self.found else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(read_file(path, str(path)))[KEY]
        packer = given.get("packer")
        found = {"identity": dict(given["identity"]), "found": dict(given["found"])}
    except SourceError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("the file is not a plan that parts can use", path, _HOW) from error
    if packer != PACKER:
        raise _of_another_version(path)
    return found


def _of_another_version(plan: object) -> ValueError:
    return ValueError(
        f"the plan {plan} was made by another version than {PACKER}: make it anew with this one"
    )
