"""The levels of lists that all have one size, which tell Parquet where each begins: run-length encoded.

An encoder that is given every level takes longer than all else in writing such a column. The levels repeat
themselves row by row, so here one period is encoded, and repeated.

Source:
    https://parquet.apache.org/docs/file-format/data-pages/encodings/: run length encoding / bit-packing hybrid, of
    one bit; where runs begin is Arrow's choice (``RleBitPackedEncoder``).
"""

from __future__ import annotations

from packdata.formats.thrift import varint

_GROUP = 8  # levels that are packed into a byte
_MOST_GROUPS = 63  # of a packed run, whose size takes one byte


def list_levels(num_lists: int, size: int) -> bytes:
    """Return the repetition and the definition levels of lists, as a data page of version 1 has them."""
    defined = _run(num_lists * size, 1)
    repeated = _repetition(num_lists, size)
    return b"".join(len(part).to_bytes(4, "little") + part for part in (repeated, defined))


def _repetition(num_lists: int, size: int) -> bytes:
    """Return a 0 and ``size - 1`` 1 for each list, encoded."""
    if size == 1:
        return _run(num_lists, 0)
    seen: dict[object, tuple[int, int]] = {}  # list, and byte, at which a state was reached
    encoder = _Encoder()
    for row in range(num_lists):
        first, begin = seen.setdefault(encoder.state, (row, encoder.begin))
        if first < row:  # from here on all is as it was from there on
            period = bytes(encoder.out[begin : encoder.begin])
            times, rest = divmod(num_lists - first, row - first)
            tail = _Encoder()
            tail.put_lists(first + rest, size)
            out = tail.end()
            return out[:begin] + period * times + out[begin:]
        encoder.put_lists(1, size)
    return encoder.end()


class _Encoder:
    """Takes levels one after the other; ``out`` ends in the run of packed ones that is under way."""

    def __init__(self) -> None:
        self.out = bytearray()
        self._level = self._repeated = self._groups = 0
        self._waiting: list[int] = []

    @property
    def begin(self) -> int:
        """Where in ``out`` the open run begins, or the next one will."""
        return len(self.out) - (self._groups + 1 if self._groups else 0)

    @property
    def state(self) -> object:
        """All on which depends what comes next."""
        return bytes(self.out[self.begin :]), self._level, self._repeated, tuple(self._waiting)

    def put_lists(self, num: int, size: int) -> None:
        for _ in range(num):
            self._put(0, 1)
            self._put(1, size - 1)

    def _put(self, level: int, times: int) -> None:
        while times:
            if level != self._level:
                if self._repeated >= _GROUP:
                    self._close_repeated()
                self._level, self._repeated = level, 0
            self._repeated += 1
            if self._repeated > _GROUP:
                self._repeated += times - 1
                return
            self._waiting.append(level)
            times -= 1
            if len(self._waiting) == _GROUP:
                self._pack_waiting()

    def _pack_waiting(self) -> None:
        if self._repeated >= _GROUP:  # these begin a run of equal ones
            self._waiting, self._groups = [], 0
            return
        if not self._groups:
            self.out.append(0)
        self._groups += 1
        self.out.append(sum(level << i for i, level in enumerate(self._waiting)))
        self.out[self.begin] = self._groups << 1 | 1
        self._waiting, self._repeated = [], 0
        if self._groups == _MOST_GROUPS:
            self._groups = 0

    def _close_repeated(self) -> None:
        self.out += _run(self._repeated, self._level)
        self._waiting, self._repeated = [], 0

    def end(self) -> bytes:
        """Return all, what waits included."""
        is_run = not self._groups and len(self._waiting) in (0, self._repeated)
        if self._repeated and is_run:
            self._close_repeated()
        elif self._waiting:
            self._repeated = 0
            self._waiting += [0] * (_GROUP - len(self._waiting))
            self._pack_waiting()
        return bytes(self.out)


def _run(num: int, level: int) -> bytes:
    return varint(num << 1) + bytes([level])
