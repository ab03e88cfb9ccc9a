"""``TokenWindows``: a stream of tokens as samples of one length, with the token that follows each."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from loaders.checks import Settled, as_list, one_of, shares, shown, whole_number
from loaders.codecs.tokenizer import decoder_of
from loaders.data.shards import MemoryShard
from loaders.datasets.base import BatchDataset, SamplesOf, from_start, index_array
from loaders.datasets.packed import PackedDataset
from loaders.datasets.reading.request import ReadPlan, Request
from loaders.datasets.shard import ShardDataset
from loaders.datasets.tokens.documents import SAMPLE_FIELDS, DocumentPlan, DocumentReader, Fit
from loaders.datasets.tokens.reader import WindowReader, tokens_and_targets
from loaders.datasets.tokens.stream import TokenStream
from loaders.errors import NoValueError, SchemaError
from loaders.schema.tokens import LABELS, TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loaders.data.store import Store
    from loaders.datasets.base import Halves
    from loaders.remote.url import Location
    from loaders.schema import Field, Schema

Indices = npt.NDArray[np.int64]
By = Literal["stream", "document"]
Tail = Literal["drop", "pad"]
Dtype = Literal["int64", "int32", "stored"]


class TokenWindows(Settled, BatchDataset):
    """Windows over a stream of tokens: a map-style dataset of ``tokens`` and ``targets``.

    ``windows[i]`` has both, ``length`` tokens each, and a batch has ``batch_size`` rows of them.
    ``by="stream"`` cuts the whole stream, documents and all, every ``stride`` tokens; target ``i``
    is token ``i + 1``. Where the dataset has ``labels`` (of conversations, or packed beside lists of
    ids), targets are these instead: target ``i`` is label ``i + 1``, -100 where it does not matter.
    ``by="document"`` packs whole documents into windows (longer ones are
    split); a target is the next token of the same document, -100 where there is none, and samples
    also have ``position_ids`` (from 0 in each part of a document, and in padding) and ``document_ids``
    (from 0 in each window, -1 where it is padded). A batch of these also has ``cu_seqlens`` (int32: where
    sequences begin in the flattened batch, and its end; padding counts as a sequence) and
    ``max_seqlen`` (an int), as attention over sequences of different lengths wants them.

    What a training script wants to know of the ids is here, too: ``vocab_size``, ``eod``, and
    ``decode(ids)``, which makes text of them. To train on a part, use ``split`` or ``span``; to
    join several packings, ``TokenWindows(concat([ShardDataset(a), ShardDataset(b)]))``.

    Args:
        dataset: What ``packdata tokens`` made: its folder, or a ``ShardDataset`` or ``RAMDataset``
            of it. A folder is opened with the ``check`` that ``ShardDataset`` has by default.
        length: Tokens of a window; default: 1024.
        stride: Tokens from one window to the next; default: ``length``. For ``by="stream"``.
        tail: What becomes of the last tokens where they make no whole window: ``"drop"``, the
            default, leaves them out; with ``"pad"`` the window is filled with ``eod`` (zeros where
            there is none), its targets with -100, which ``cross_entropy`` ignores. For
            ``by="stream"``: windows of documents are always filled, with zeros.
        by: ``"stream"``, the default, or ``"document"``.
        fit: How documents are put together, the longest first: ``"best"``, the default, leaves
            least empty, ``"first"`` takes the first window that has room. For ``by="document"``.
        dtype: Of tokens and targets: ``"int64"``, the default, ``"int32"``, or ``"stored"``: as
            they are stored, uint8 to uint32, to be widened on the device (``.long()``); targets
            then are a view of the same memory.
        span: First position and the one behind the last, in tokens; default: all. With
            ``by="document"``, of documents that begin inside.

    Attributes:
        vocab_size: Ids are below it: the size of an embedding; SchemaError where ids were packed without saying.
        eod: The id that ends each document, or None.
        schema: The fields of the packed dataset.
        num_tokens: Tokens of the span.
        num_left_out: Tokens behind the last window, which no sample has.
        padding_share: Share of positions that hold no token.

    Shape:
        Tokens and targets of a batch: ``(N, length)``; with ``by="document"`` the other two as well.

    Raises:
        SchemaError: The dataset holds no tokens, or some of its rows only.
        ValueError: An option is out of range, or there is no window of that length.

    Example::

        windows = TokenWindows("packed", length=1024)
        model = Model(windows.vocab_size)
        for tokens, targets in DataLoader(windows, batch_size=32, shuffle=True):
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        print(windows.decode(tokens[0]))
    """

    _settled = frozenset({"dataset", "length", "stride", "tail", "by", "fit", "dtype", "span"})
    finishes_late = True
    num_left_out: int
    _documents: DocumentPlan | None

    def __init__(
        self,
        dataset: PackedDataset | Location | str,
        length: int = 1024,
        stride: int | None = None,
        *,
        tail: Tail = "drop",
        by: By = "stream",
        fit: Fit = "best",
        dtype: Dtype = "int64",
        span: tuple[int, int] | None = None,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, PackedDataset) else ShardDataset(dataset)
        self.length, self.stride = length, length if stride is None else stride
        self.tail, self.by, self.fit, self.dtype = tail, by, fit, dtype
        self._check_options(stride)
        if dtype != "stored":
            # Making them wide takes the trainer longer than reading; laying documents out is Python.
            self.max_workers = 1
        self.stream = TokenStream(self.dataset)
        self.labels = TokenStream(self.dataset, LABELS) if LABELS in self.schema.fields else None
        if self.labels is not None and dtype == "stored":
            raise ValueError(
                "the dataset has labels, some of which are -100: use dtype='int64' or 'int32'"
            )
        self.span = self._check_span(span)
        self._make_plan()

    def _make_plan(self) -> None:
        """Lay out the windows of the span."""
        if self.by == "document":
            self._plan_documents()
        else:
            self._plan_stream()
            self._documents = None
            self.plan = self._windows_plan(is_half=False)
        if not len(self):
            what = f"{self.num_tokens:,} tokens are too few for a window of {self.length:,} and its last target"
            raise ValueError(f"{what}: use a smaller length, or tail='pad'")

    def _check_options(self, stride: int | None) -> None:
        for name, value in (("length", self.length), ("stride", self.stride)):
            whole_number(name, value, at_least=1)
        for name, choice in (("tail", Tail), ("by", By), ("fit", Fit), ("dtype", Dtype)):
            one_of(name, getattr(self, name), get_args(choice))
        if self.by == "document" and stride is not None:
            raise ValueError("stride is for by='stream': with by='document' nothing overlaps")
        if self.dtype == "stored" and (self.by == "document" or self.tail == "pad"):
            raise ValueError(
                "by='document' and tail='pad' mark targets by -100, which needs dtype='int64' or 'int32'"
            )

    def _check_span(self, span: tuple[int, int] | None) -> tuple[int, int]:
        total = self.stream.num_tokens
        pair = as_list("span", (0, total) if span is None else span, "two numbers of tokens")
        start, stop = pair if len(pair) == 2 else (-1, -1)
        whole_number("span[0]", start)
        whole_number("span[1]", stop)
        if not 0 <= start <= stop <= total:
            raise ValueError(f"span must lie in [0, {total}], got {span}")
        return int(start), int(stop)

    def _plan_stream(self) -> None:
        num, length = self.span[1] - self.span[0], self.length
        behind_first = num - 1 - length  # targets that the first window does not have
        if self.tail == "drop":
            self._num_windows = max(0, behind_first // self.stride + 1)
        else:
            # Of all that begin where a target is left, those up to the first that is not whole.
            begins = max(0, (num - 2) // self.stride + 1)
            self._num_windows = min(begins, max(0, -(-behind_first // self.stride)) + 1)
        covered = (self._num_windows - 1) * self.stride + length + 1 if self._num_windows else 0
        self.num_left_out = max(0, num - covered)
        self._num_padded = max(0, covered - num - 1)  # the last token has no target, but is one

    def _plan_documents(self) -> None:
        ends = self.stream.document_ends
        begins = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
        first, last = np.searchsorted(begins, self.span).tolist()
        start = int(begins[first]) if first < last else 0
        plan = self._documents = DocumentPlan(ends[first:last], start, self.length, self.fit)
        self._num_windows, self.num_left_out = plan.num_windows, 0
        self._num_padded = self._num_windows * self.length - plan.num_tokens
        dtype = np.dtype(self.dtype)
        reader = DocumentReader(self.stream, plan, self.length, dtype, self.labels)
        self.plan = ReadPlan(None, (reader,))

    def _windows_plan(self, *, is_half: bool) -> ReadPlan:
        reader = WindowReader(
            self.stream, self.labels, self.span, self.length, self.stride, self.dtype, is_half
        )
        return ReadPlan(None, (reader,))

    def __len__(self) -> int:
        return self._num_windows

    # -- what the ids are --------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The fields of the packed dataset."""
        return self.dataset.schema

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields of a sample, in order."""
        return SAMPLE_FIELDS if self.by == "document" else SAMPLE_FIELDS[:2]

    @property
    def stored_fields(self) -> dict[str, Field]:
        return {n: f for n, f in self.schema.fields.items() if n in (TOKENS, LABELS)}

    @property
    def vocab_size(self) -> int:
        """Ids are below it; NoValueError where they were packed without saying."""
        size = self.stream.field.vocab_size
        if size is None:
            what = "the size of the vocabulary is not known"
            raise NoValueError(f"{what}: pack the ids with --vocab-size, or use your tokenizer's")
        return size

    @property
    def eod(self) -> int | None:
        """The id that ends each document; None where there is none."""
        return self.stream.field.eod

    def decode(self, ids: Any) -> str:
        """Return the text of tokens, by the tokenizer that they were packed with.

        Bytes that are no UTF-8 become U+FFFD; ids that stand for nothing, such as -100, are left
        out.

        Args:
            ids: Of one text: a tensor on any device, an array or a list.

        Raises:
            TypeError: They are no ids, or of several texts.
            SchemaError: No tokenizer is kept with the dataset.
            LoadersError: It is a ``tokenizer.json``, and ``tokenizers`` is not installed.
            ShardError: Its file is missing, or another one.
        """
        array = np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids)
        if array.ndim > 1 or (array.size and array.dtype.kind not in "iu"):
            what = "decode() takes a list of ids, the tokens of one text"
            raise TypeError(f"{what}, got {shown(ids)}")
        shard = self.dataset.store.shards[0]
        folder = shard.path if isinstance(shard, MemoryShard) else shard.path.parent
        decoder = decoder_of(folder, self.stream.field)
        if decoder is None:
            what = "no tokenizer is kept with these tokens: they were packed as ids"
            raise SchemaError(f"{what}; decode them with the one that made them")
        return decoder.decode(array.reshape(-1))

    # -- how many there are ------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Tokens of the span."""
        return self.span[1] - self.span[0]

    @property
    def padding_share(self) -> float:
        """Share of the positions of all windows that hold no token."""
        return self._num_padded / max(1, len(self) * self.length)

    # -- two halves --------------------------------------------------------------------------------

    def halves(self, device: torch.device) -> Halves | None:
        """Return batches of ``windows``, ``(N, length + 1)`` as stored, and what widens them where they are used.

        So what is prefetched and copied is as narrow as what is stored; and what is handed over is
        still in the cache. None where targets of -100 are made with the batch.
        """
        plain = self.by == "stream" and self.tail == "drop" and self.labels is None
        if not plain or self.dtype == "stored":
            return None
        plan = self._windows_plan(is_half=True)
        return SamplesOf(self, plan), partial(tokens_and_targets, dtype=self.dtype)

    @property
    def fingerprint(self) -> str:
        """Identifies the windows and their order; a resumed run must have the same."""
        options = [self.length, self.stride, self.tail, self.by, self.fit, *self.span]
        text = " ".join(map(str, [self.dataset.fingerprint, *options]))
        return xxhash.xxh3_128_hexdigest(text.encode())

    def split(self, parts: Sequence[float]) -> tuple[Self, ...]:
        """Divide the stream into consecutive spans, which share no token.

        ``by="document"`` moves the borders to the next end of a document.

        Args:
            parts: The share of each part; they sum to 1.
        """
        parts = shares(parts)
        start, stop = self.span
        cuts = start + np.round(np.cumsum([0.0, *parts]) * (stop - start)).astype(np.int64)
        cuts[-1] = stop
        if self.by == "document":
            ends = self.stream.document_ends
            cuts[1:-1] = ends[np.searchsorted(ends, cuts[1:-1])]
            if (np.diff(cuts) <= 0).any():
                raise ValueError(f"a part of {[*parts]} would get no document: use a larger share")
        return tuple(self._of_span(int(a), int(b)) for a, b in itertools.pairwise(cuts))

    def _of_span(self, start: int, stop: int) -> Self:
        part = type(self).__new__(type(self))  # a subclass stays what it is
        part.__dict__.update(self.__dict__)
        part.__dict__["span"] = start, stop
        part._make_plan()
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and streams; where windows lie is found anew."""
        found = ("plan", "_documents")
        return {name: value for name, value in self.__dict__.items() if name not in found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_plan()

    def by_shard(self) -> tuple[Indices, None]:
        """Return how many windows begin in each shard: they lie in the order of these.

        Raises:
            ValueError: ``by="document"`` puts documents of any shards together.
        """
        if self.by == "document":
            what = "windows of by='document' may have documents of several shards"
            raise ValueError(f"{what}, so they cannot be dealt by shard: use by='stream'")
        before = -(-(self.stream.shard_ends - self.span[0]) // self.stride)
        sizes = np.diff(before.clip(0, len(self)), prepend=0)
        return sizes[sizes > 0], None

    @property
    def stores(self) -> tuple[Store, ...]:
        return self.dataset.stores

    def shards_read(self, indices: Indices) -> tuple[Indices, ...]:
        if self._documents is not None:
            parts, _ = self._documents.parts_of(indices)
            starts, lengths = self._documents.starts[parts], self._documents.lengths[parts]
        else:
            starts = self.span[0] + indices * self.stride
            lengths = np.minimum(self.length + 1, self.span[1] - starts)
        return (self.stream.shards_of(starts, starts + lengths),)

    # -- samples -----------------------------------------------------------------------------------

    def request(self, indices: Any, num_workers: int = 1) -> Request:
        numbers = from_start(index_array(indices), len(self), "window")
        return Request(self.plan, numbers, num_workers=num_workers)

    def __repr__(self) -> str:
        what = f"{len(self):,} windows of {self.length:,}, {self.num_tokens:,} tokens"
        if self.num_left_out:
            what += f", the last {self.num_left_out:,} left out"
        if self._num_padded:
            what += f", {self.padding_share:.2%} padding"
        return f"TokenWindows({what})"
