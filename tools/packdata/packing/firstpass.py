"""What needs a look at all of a source before any of it is packed: learned once, and given to parts by a file."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import SourceError
from loaders.remote.url import place_of
from packdata.packing.provenance import PACKER
from packdata.sources.base import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

KEY = "first_pass"  # in the JSON of a plan
_HOW = "'--dry-run --json > plan.json' makes it, without --part"


class FirstPass:
    """What was learned of a source, by name, as JSON: here, or by the command that printed the plan.

    Args:
        plan: A file with what ``--dry-run --json`` printed, or one of each share (``--part`` beside it); None to learn.
        is_part: One part is packed, which does not learn what all would have to.
        share: ``(I, N)``: learn only what share I of N teaches.

    Attributes:
        found: What was learned or taken.

    Raises:
        SourceError: A file cannot be read, is no plan, or shares are missing.
        ValueError: Another version has made one.
    """

    def __init__(
        self,
        plan: Path | str | Sequence[Path | str] | None = None,
        *,
        is_part: bool = False,
        share: tuple[int, int] | None = None,
    ) -> None:
        given = [plan] if isinstance(plan, Path | str) else plan or ()
        plans = [place_of(each) for each in given]
        self.plan, self._is_part = ", ".join(map(str, plans)), is_part
        self.share = None if plans else share
        self.found: dict[str, Any] = {}
        self._given = [_read(each) for each in plans]
        self._is_shares = bool(plans) and "share" in self._given[0]
        if plans and (self._is_shares or len(plans) > 1):
            self._given = self._in_order()

    def _in_order(self) -> list[dict[str, Any]]:
        shares = sorted(self._given, key=lambda each: tuple(each.get("share", ())))
        found = [tuple(each.get("share", ())) for each in shares]
        if found != [(i, len(shares)) for i in range(len(shares))]:
            told = ", ".join("/".join(map(str, each)) or "a whole one" for each in found)
            what = f"they are not all shares of one plan, each once: {told}"
            raise SourceError(
                what, self.plan, "Give --plan FILE once for each of --part 0/N to N-1/N"
            )
        return shares

    def get(
        self,
        name: str,
        learn: Callable[[], Any],
        what: str,
        join: Callable[[Sequence[Any]], Any] | None = None,
    ) -> Any:
        """Return what is called ``name``: of the plan, or learned; ``join`` makes it of what shares have learned.

        Raises:
            ValueError: A part is packed without a plan (``what`` tells why it needs one), or with another version's.
            SourceError: The plan does not have it.
        """
        if self._given:
            if any(name not in each["found"] for each in self._given):
                raise SourceError(f"it does not have {what}", self.plan, _HOW)
            told = [each["found"][name] for each in self._given]
            with self.reading():
                self.found[name] = join(told) if self._is_shares and join is not None else told[0]
        elif self._is_part and (self.share is None or join is None):
            raise ValueError(f"--part needs --plan for {what}, which all parts share: {_HOW}")
        else:
            self.found[name] = learn()
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
        now = json.loads(json.dumps(identity))
        for was in (each["identity"] for each in self._given):
            differs = [name for name in {**now, **was} if now.get(name, ...) != was.get(name, ...)]
            if not differs:
                continue
            what = f"it was made of other files, or with other options ({', '.join(differs[:4])})"
            raise SourceError(what, str(self.plan), _HOW)

    def to_json(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan has of it."""
        share = {} if self.share is None else {"share": list(self.share)}
        about = {"packer": PACKER, "identity": dict(identity), "found": self.found, **share}
        return {KEY: about} if self.found else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(read_file(path, str(path)))[KEY]
        packer = given.get("packer")
        share = {"share": tuple(given["share"])} if "share" in given else {}
        found = {"identity": dict(given["identity"]), "found": dict(given["found"]), **share}
    except SourceError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("it is not a plan that parts can use", path, _HOW) from error
    if packer != PACKER:
        raise _of_another_version(path)
    return found


def _of_another_version(plan: object) -> ValueError:
    return ValueError(
        f"--plan {plan} was made by another version than {PACKER}: make it anew with this one"
    )
