"""The parts of a packing as tasks of Ray.

1. The driver lists the source and learns what needs all of it, once; tasks get that plan, and pack parts of it as
   ``--part`` does. What Ray moves is the plan, and a few numbers of each part.
2. Ray runs a task whose worker or node is lost again, a few times; any other error ends the run. What is packed
   stays: the same command goes on.
3. When all parts are there, the driver asks whether the source is still what was listed, and joins them, which
   refuses parts made by other versions.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError, PackError
from loaders.remote.origin import get_defaults, set_defaults
from packdata.describe import counted
from packdata.packing.engine import Run, source_changed
from packdata.packing.progress import Quiet
from packdata.packing.target import check_outside
from packdata.parts.packing import finish, pack_part
from packdata.parts.part import Part
from packdata.plan import described, ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loaders.remote.url import Location
    from packdata.packing.progress import Progress
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

    Pack = Callable[[Part], Summary]

# Of one part: about 1 GB of pictures, of text or of tables. It depends on nothing but the source, as the bytes do.
_FILES_OF_A_PART, _BLOCKS_OF_A_PART = 10_000, 128
_MAX_RETRIES = 3  # of one part: then it is what kills its worker
_WAIT_S = 1.0


def usual_parts(plan: SourcePlan) -> int:
    """Return how many parts a source is divided into by default."""
    sizes = {True: _BLOCKS_OF_A_PART, False: _FILES_OF_A_PART}
    return max(1, sum(-(-len(each) // sizes[each.is_of_blocks]) for _, each in plan.splits))


def pack_on_ray(
    plan: SourcePlan,
    dst: Location | str,
    *,
    parts: int | None,
    address: str | None,
    note: Callable[[str], object],
) -> Summary:
    """Pack what was planned as tasks of Ray, and join the parts.

    Args:
        plan: What to pack; ``workers`` of its settings are the threads, and so the cores, of each task, one by default.
        dst: A folder that all nodes mount, or a URL.
        parts: How many; None for some of about 1 GB each.
        address: Of a running Ray (``auto``, ``HOST:PORT``, ``ray://...``); None starts one here, which ends with this.
        note: Called with what is done where.

    Raises:
        LoadersError: Ray is not installed.
        PackError: No node has enough cores, a part was lost too often; or what ``pack_recipes`` and ``finish`` raise.
        SourceError: An item cannot be packed.
    """
    check_outside(dst, plan.sources)
    began, of = time.monotonic(), parts or usual_parts(plan)
    cores, progress = plan.settings.workers or 1, plan.settings.progress or Quiet()
    run = Run(replace(plan.settings, workers=cores, progress=None))
    pack = partial(pack_part, run, ordered(plan, dst), dst)
    with _ray(address) as ray:
        items = counted(sum(len(recipe) for _, recipe in plan.splits), "item")
        note(f"{items} in {counted(of, 'part')}, on {counted(len(ray.nodes()), 'node')}")
        samples = _pack_all(ray, pack, of, cores, progress)
    if not plan.is_unchanged():
        raise source_changed(dst)
    summary = finish(dst, overwrite=plan.settings.overwrite)
    if not summary.datasets:  # all was there
        return summary
    seconds = time.monotonic() - began
    return replace(described(plan, summary), seconds=seconds, samples_per_s=samples / seconds)


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Connect to Ray, or start it here; it ends with this, or at least our tasks do."""
    try:
        import ray
    except ImportError as error:
        raise LoadersError("engine='ray' needs Ray: pip install 'loaders[ray]'") from error
    try:
        ray.init(
            address or "local",
            logging_level="ERROR",
            log_to_driver=False,
            include_dashboard=None if address else False,
        )
    except Exception as error:  # it also raises bare ones: where a node does not start in 30 s
        where = address or "this machine"
        raise LoadersError(f"cannot connect to Ray at {where}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _pack_one(pack: Pack, part: Part, folder: str, remote: Mapping[str, Any]) -> tuple[int, int]:
    """Pack a part, in a task; return its samples and rejects."""
    os.chdir(folder)  # of the driver: sources may be relative to it
    if get_defaults() != remote:
        set_defaults(**remote)
    summary = pack(part)
    return summary.samples, len(summary.rejected)


def _pack_all(ray: Any, pack: Pack, of: int, cores: int, progress: Progress) -> int:
    """Pack all parts; return how many samples that made."""
    task = ray.remote(_pack_one).options(num_cpus=cores, max_retries=_MAX_RETRIES)
    shared, folder, remote = ray.put(pack), os.getcwd(), get_defaults()
    parts = (Part(number, of) for number in range(of))
    running = {task.remote(shared, part, folder, remote): part for part in parts}
    packed = rejected = 0
    with closing(progress):
        progress.start(None, 0)
        while running:
            _check_room(ray, cores)
            for each in ray.wait([*running], timeout=_WAIT_S)[0]:
                samples, rejects = _result(ray, each, running.pop(each))
                packed, rejected = packed + samples, rejected + rejects
                progress.advance(rejected, samples)
    return packed


def _check_room(ray: Any, cores: int) -> None:
    """Raise PackError if no node has so many cores: parts would wait for ever."""
    nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    if max(nodes, default=0.0) < cores:
        hint = "Pass fewer workers=, or add a node; the same command goes on"
        raise PackError(f"no node has {counted(cores, 'core')}, as a part takes", "Ray", hint)


def _result(ray: Any, task: Any, part: Part) -> tuple[int, int]:
    try:
        return ray.get(task)  # type: ignore[no-any-return]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        what = f"the worker of part {part} was lost again and again ({str(error).splitlines()[0]})"
        raise PackError(what, part.name, "More memory, or smaller parts, may help") from error
