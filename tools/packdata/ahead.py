"""Objects of a store that items read, fetched ahead of need: many by one question."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from packdata.bucket import Bucket
    from packdata.reading import RemoteFile

T = TypeVar("T")
_ASKS, _ASK_ITEMS, _ASK_BYTES = 8, 32, 4 << 20  # questions on their way, and how much each is for
# Of the first question, twice as many of the next: the first items soon come.
_FIRST_ITEMS = 4


def fetched_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield items; the objects that they name as ``reads`` are fetched meanwhile, some ahead.

    When all were yielded the last ones may still be on their way; when it is closed before, what has not begun is not
    fetched.
    """
    for first in items:
        if _reads(first):
            break
        yield first  # of this machine, or one that is rejected
    else:
        return
    pool = ThreadPoolExecutor(_ASKS, "fetch-ahead")
    questions, ahead = _questions(chain([first], items)), deque[list[T]]()
    try:
        while True:
            while len(ahead) < _ASKS and sum(map(_nbytes, chain(*ahead))) < _ASKS * _ASK_BYTES:
                if not (some := next(questions, None)):
                    break
                _ask(pool, some)
                ahead.append(some)
            if not ahead:
                break
            yield from ahead.popleft()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown(wait=False)


def _questions(items: Iterator[T]) -> Iterator[list[T]]:
    """Divide items into those that one question is for."""
    some, nbytes, most = list[T](), 0, _FIRST_ITEMS
    for item in items:
        some.append(item)
        nbytes += _nbytes(item)
        if len(some) >= most or nbytes >= _ASK_BYTES:
            yield some
            some, nbytes, most = [], 0, min(2 * most, _ASK_ITEMS)
    if some:
        yield some


def _ask(pool: ThreadPoolExecutor, items: Iterable[object]) -> None:
    """Fetch what items read on another thread, with a question to each bucket."""
    by_bucket: dict[Bucket, list[RemoteFile]] = {}
    for file in chain.from_iterable(map(_reads, items)):
        by_bucket.setdefault(file.bucket, []).append(file)
    for bucket, files in by_bucket.items():
        ranges = [(file.name, file.start, file.end, file.mark) for file in files]
        answer = pool.submit(bucket.objects, ranges)
        for number, file in enumerate(files):
            file.coming = partial(_of_answer, answer, number)


def _of_answer(answer: Future[list[bytes | str]], number: int) -> bytes | str:
    return answer.result()[number]


def _nbytes(item: object) -> int:
    return sum(file.end - file.start for file in _reads(item))


def _reads(item: object) -> Sequence[RemoteFile]:
    return getattr(item, "reads", ())
