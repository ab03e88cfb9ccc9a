"""The parts of a packing as tasks of Ray.

1. The driver lists the source and learns what needs all of it, once; tasks get that plan, and pack parts of it as
   ``--part`` does. What Ray moves is the plan, and a few numbers of each part.
2. A task whose worker or node is lost is given out again, a few times for each part; any other error ends the run.
   What is packed stays: the same command goes on.
3. When all parts are there, the driver asks whether the source is still what was listed, and joins them.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loaders.errors import LoadersError, PackError
from loaders.remote.origin import get_defaults, set_defaults
from loaders.remote.url import is_url, place_of
from loaders.text import describe_size
from loaders.version import __version__
from packdata.describe import counted
from packdata.packing.engine import changed
from packdata.packing.outside import check_outside
from packdata.packing.progress import Quiet
from packdata.packing.shards import DEFAULT_SHARD_BYTES
from packdata.packing.target import PARTS_NAME, missing_folders
from packdata.parts.local import digest_of_parts, finish, pack_part
from packdata.parts.part import Part, in_order, versions
from packdata.sources.fetched import drop_copies
from packdata.sources.listed import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packdata.packing.progress import Progress
    from packdata.packing.summary import Summary
    from packdata.plan import SourcePlan

# Of one part: about 1 GB of pictures, of text or of tables. It depends on nothing but the source, as the bytes do.
_FILES_OF_A_PART, _BLOCKS_OF_A_PART = 10_000, 128
_MAX_LOSSES = 3  # of one part: then it is what kills its worker
_WAIT_S = 1.0
_START_S = 120.0  # of a task that a node has room for, and of a node where none has room


def usual_parts(plan: SourcePlan) -> int:
    """Return how many parts a source is divided into by default."""
    sizes = {True: _BLOCKS_OF_A_PART, False: _FILES_OF_A_PART}
    return max(1, sum(-(-len(each) // sizes[each.is_of_blocks]) for _, each in plan.splits))


def pack_on_ray(
    plan: SourcePlan,
    dst: Path | str,
    *,
    parts: int | None = None,
    address: str | None = None,
    workers: int | None = None,
    shuffle: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], object] = str,
    **settings: Any,
) -> Summary:
    """Pack what was planned as tasks of Ray, and join the parts.

    Args:
        plan: What to pack.
        dst: A folder that all nodes mount, or a URL.
        parts: How many; None for some of about 1 GB each.
        address: Of a running Ray (``auto``, ``HOST:PORT``, ``ray://...``); None starts one here, which ends with this.
        workers: Threads, and so cores, of each task; None for one.
        shuffle: As of ``PackSettings``.
        overwrite: As of ``pack_recipes``.
        progress: Is told of every part.
        note: Called with what is done where.
        settings: The others of ``pack_recipes``.

    Raises:
        LoadersError: Ray is not installed.
        PackError: A node differs in versions, does not see the target or a source, or has too few cores; a part was
            lost too often; or what ``pack_recipes`` raises.
        SourceError: An item cannot be packed.
    """
    check_outside(dst, plan.sources)
    began = time.monotonic()
    of, place = parts or usual_parts(plan), place_of(dst).absolute()
    settings |= {"workers": workers or 1, "overwrite": overwrite}
    needed = [place / PARTS_NAME, Path.cwd(), *map(place_of, plan.sources)]
    recipes = in_order(plan.splits, shuffle)
    with _ray(address) as ray, _made(place / PARTS_NAME):
        nodes = _check_nodes(
            ray, place, [str(path.absolute()) for path in needed if path.exists()]
        )
        if _most_cores(ray) < settings["workers"]:
            raise _no_room(ray, settings["workers"])
        items = counted(sum(len(recipe) for _, recipe in plan.splits), "item")
        size = (
            ""
            if (size_bytes := bytes_of(plan.sources)) is None
            else f" of {describe_size(size_bytes)}"
        )
        note(f"{items}{size} in {counted(of, 'part')}, on {counted(nodes, 'node')}")
        shared = recipes, plan.format, str(place), os.getcwd(), get_defaults(), settings
        job = ray.put(shared)
        quiet = Quiet() if progress is None else progress
        samples = _pack_all(ray, job, of, settings["workers"], quiet)
    if not plan.is_unchanged():
        raise changed(dst)
    shard_bytes = settings.get("shard_bytes", DEFAULT_SHARD_BYTES)
    digest = digest_of_parts(recipes, plan.format, shard_bytes, of)
    summary = finish(dst, overwrite=overwrite, digest=digest)
    if not summary.datasets:  # all was there
        return summary
    seconds = time.monotonic() - began
    return replace(
        summary,
        notes=(*summary.notes, *plan.notes(summary)),
        amount=plan.amount(summary),
        seconds=seconds,
        samples_per_s=samples / seconds,
    )


@lru_cache(maxsize=1)
def _job_of(job: Any) -> Any:
    """Return what all tasks share, which a worker fetches for its first part."""
    import ray

    return ray.get(job)


def _pack_one(jobs: list[Any], part: Part) -> tuple[int, int]:
    """Pack a part, in a task; return its samples and rejects."""
    recipes, format, dst, folder, remote, settings = _job_of(jobs[0])
    os.chdir(folder)  # of the driver: sources may be relative to it
    if get_defaults() != remote:
        set_defaults(**remote)
    try:
        summary = pack_part(recipes, dst, part, format=format, **settings)
    finally:
        drop_copies()
    return summary.samples, len(summary.rejected)


def _about_node(needed: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return, in a task, the versions of a node, and what it does not see."""
    found = {"loaders": __version__, **versions()}
    return found, [path for path in needed if not os.path.exists(path)]


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; what was made goes again if nothing came into it. At a URL there are none."""
    if is_url(folder):
        yield
        return
    made = missing_folders(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Connect to Ray, or start it here; it ends with this."""
    try:
        import ray
    except ImportError as error:
        raise LoadersError("--engine ray needs Ray: pip install 'loaders[ray]'") from error
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        options |= {"include_dashboard": False, "address": "local"}
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as error:  # it also raises bare ones: where a node does not start in 30 s
        raise LoadersError(
            f"no Ray was reached at {address or 'this machine'}: {error}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_nodes(ray: Any, place: Path, needed: Sequence[str]) -> int:
    """Raise PackError for a node that would make other bytes, or lacks what is needed; return how many there are."""
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ask = ray.remote(_about_node)
    ours, _ = _about_node(())
    asked = {
        ask.options(num_cpus=0, scheduling_strategy=near(n["NodeID"], soft=False)).remote(
            needed
        ): n["NodeManagerHostname"]
        for n in nodes
    }
    for answer, host in asked.items():
        try:
            theirs, lacks = ray.get(answer, timeout=_START_S)
        except ray.exceptions.RayError as error:
            what = (
                f"node {host} does not answer, or has no packdata ({str(error).splitlines()[0]})"
            )
            raise PackError(what, place, "Install the same versions there") from error
        differs = [
            f"{name} {theirs.get(name, 'missing')}, here {mine}"
            for name, mine in ours.items()
            if theirs.get(name) != mine
        ]
        if differs:
            what = f"node {host} has other versions: {'; '.join(differs[:4])}"
            raise PackError(what, place, "Parts made by them may differ: install the same there")
        if lacks:
            hint = "Choose a folder that all nodes mount at the same path"
            raise PackError(f"node {host} does not see it", lacks[0], hint)
    return len(nodes)


def _most_cores(ray: Any) -> float:
    """Return the cores of the largest node: a task that takes more would wait for ever."""
    return max((n["Resources"].get("CPU", 0.0) for n in ray.nodes() if n["Alive"]), default=0.0)


def _no_room(ray: Any, cores: int) -> PackError:
    what = f"a part takes {counted(cores, 'core')}, and no node has more than {_most_cores(ray):g}"
    return PackError(what, "Ray", "Give fewer --workers, or add a node; the same command goes on")


def _pack_all(ray: Any, job: Any, of: int, cores: int, progress: Progress) -> int:
    """Pack all parts, a few ahead of the cores there are; return how many samples that made."""
    run = ray.remote(_pack_one).options(num_cpus=cores, max_retries=0)
    waiting, running = deque(Part(i, of) for i in range(of)), dict[Any, Part]()
    losses: Counter[Part] = Counter()
    packed, rejected, had_room = 0, 0, time.monotonic()
    progress.start(None, 0)
    try:
        while waiting or running:
            room = 2 + 2 * int(ray.cluster_resources().get("CPU", 1) / cores)
            while waiting and len(running) < room:
                part = waiting.popleft()
                running[run.remote([job], part)] = part
            if _most_cores(ray) >= cores:
                had_room = time.monotonic()
            elif time.monotonic() - had_room > _START_S:
                raise _no_room(ray, cores)
            ended, _ = ray.wait([*running], timeout=_WAIT_S)
            for task in ended:
                part = running.pop(task)
                try:
                    samples, rejects = ray.get(task)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayError as error:
                    losses[part] += 1
                    if losses[part] > _MAX_LOSSES:
                        raise _lost(part, error) from error
                    waiting.append(part)
                    continue
                packed += samples
                rejected += rejects
                progress.advance(rejected, samples)
    finally:
        for task in running:
            ray.cancel(task, force=True)
        progress.close()
    return packed


def _lost(part: Part, error: Exception) -> PackError:
    what = f"the worker of part {part} was lost {_MAX_LOSSES + 1} times"
    hint = (
        f"Ray says: {str(error).splitlines()[0]}. More memory, or more and smaller parts, may help"
    )
    return PackError(what, part.name, hint)
