"""``ShardDataset``: columns over mapped files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaders.checks import as_path
from loaders.codecs.heads import MAX_PICTURE_MB
from loaders.data.shards import Check, open_manifest
from loaders.data.store import Store
from loaders.data.view import View
from loaders.datasets.base import SampleT
from loaders.datasets.packed import OnError, PackedDataset, Transform
from loaders.datasets.reading.fixed import take_rows
from loaders.datasets.settings import check_augment
from loaders.remote.url import URL, Location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ShardDataset(PackedDataset[SampleT]):
    """The samples of a packed dataset, read from memory-mapped shards.

    Opening reads the manifest only; a shard is mapped when it is first touched. The page cache
    holds what was read, once per machine, whatever the number of processes. Safe under threads,
    fork and spawn; pickling sends the path.

    ``dataset[i]`` is a named tuple of tensors. ``dataset[a:b]``, ``select``, ``split`` and
    ``replace`` (other settings) give views; ``a + b`` and ``loaders.concat`` join. ``column("label")``
    is a field of all samples at once, ``find(key)`` the index of one; ``classes`` are the names of
    labels.

    Args:
        path: The folder that ``packdata`` made, or its URL: ``s3://``, ``gs://``, ``az://``, ``http(s)://``, or any
            other that fsspec opens. Shards are fetched as they are needed, verified, and mapped like those of a folder.
        fields: Names of the fields a sample has, in order; default: those that the packing
            marked, usually image and label. ``key``, ``original_size`` and ``sample_id`` (the
            position, in a view that in the view) can be asked for, the first two where they were packed:
            ``schema.fields`` has all that is stored.
        augment: Ops of ``loaders.augment``, applied while decoding, to image, mask and boxes
            alike; crops and flips also to volumes and other arrays with ``Array.spatial`` axes.
        transform: A function of a sample, or ``{field: function}``; runs per sample, on worker
            threads. A function with a parameter ``generator`` (without a default) is passed a ``torch.Generator``,
            or a ``np.random.Generator`` where it is annotated so, whose numbers depend on seed, epoch, sample and
            draw alone. The generators of the process are seeded by sample in the worker processes of
            ``backend="process"`` and with ``num_workers=0``; what threads draw from them does not repeat.
            It returns the sample, changed by ``sample._replace(...)``, or anything that torch's
            ``default_collate`` or a ``collate_fn`` takes.
        batching: How a batch has arrays and boxes of varying length, by field: ``"list"``, the
            default, ``"pad"`` (``.values`` and ``.lengths``; filled with zeros, or with what
            ``("pad", -100)`` says) or ``"offsets"`` (``.values`` end to end, and ``.offsets``).
            They are joined along the axis that varies in the schema. Of what a ``transform`` makes, of any
            field, that is the same axis if it has as many axes as before, else the first one that is not of
            length 1, or the one that ``("pad", value, axis)`` or ``("offsets", axis)`` says. Arrays that a
            transform brought to equal shapes are one tensor, if no form is given.
            ``"list"`` also for pictures that a ``transform`` gives different sizes.
        check: When records are compared with their checksums: ``"first"``, the default, when they
            are read for the first time; ``"always"``: at every read, and each file with the manifest
            when it is opened; ``"never"``.
        on_error: ``"raise"``, the default, or ``"replace"`` a sample that cannot be read by another, chosen by
            the seed, counted and logged. An error of ``transform`` is raised in any case.
        scale: 1, the default; 1/2, 1/4 or 1/8 serves ``dct`` images smaller (sides rounded up), and
            decompresses no more than that needs.
        max_picture_mb: MiB that a picture may take, decoded: a larger one is an error before memory is taken.
        cache: Of a URL, where downloads go and how much is kept: a size such as ``"500GB"``, a folder on a local disk,
            or ``{"path": ..., "size": ...}``. Default: ``$LOADERS_CACHE`` or a folder of this user; 80 % of what is
            free less 20 GB, at least 2 GB.
        storage: Of a URL, how its store is reached, as options of obstore (``endpoint``, ``region``,
            ``skip_signature``, ``access_key_id``, ``profile``, ``timeout``, ...) or of fsspec. What is not given comes
            from the environment. Pickles are without its secrets.

    Raises:
        ManifestError: The folder is not a packed dataset, or a damaged one.
        RemoteError: A URL cannot be read.
        CacheError: The cache cannot be used, or is too small.
        SchemaError: A field or option does not exist.

    Example::

        train = ShardDataset("packed/train", augment=[augment.RandomResizedCrop(224)])
        image, label = train[0]
        for images, labels in DataLoader(train, batch_size=256, shuffle=True):
            loss = cross_entropy(model(normalize(images)), labels)
    """

    def __init__(
        self,
        path: Location | str,
        *,
        fields: Sequence[str] | None = None,
        augment: Sequence[Any] | None = None,
        transform: Transform[SampleT] | None = None,
        batching: Mapping[str, Any] | None = None,
        check: Check = "first",
        on_error: OnError = "raise",
        scale: float = 1,
        max_picture_mb: int = MAX_PICTURE_MB,
        cache: Any = None,
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(path, str | URL):
            path = as_path("path", path, "the folder or URL of what packdata made")
        manifest, shards, self.path = open_manifest(path, cache, storage)
        check_augment(augment, manifest.schema.fields)
        store = Store(shards, check, take_rows)
        super().__init__(
            View(store, manifest.schema, manifest.fingerprint, self.path),
            fields=fields,
            augment=augment,
            transform=transform,
            batching=batching,
            on_error=on_error,
            scale=scale,
            max_picture_mb=max_picture_mb,
        )
