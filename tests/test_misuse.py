"""Wrong use of the Python API is an error where it enters, that says what was found and what to do.

One table: a call, the error it raises, words of its message (a regular expression). Faults of data
(damaged files, samples that do not form a batch) are tested beside the code that finds them.
"""

# Wrong types are what is tested:
# mypy: disable-error-code="arg-type, call-overload, list-item, dict-item"

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import loaders
import packdata
from loaders import (
    Balanced,
    BatchAugment,
    BlockShuffled,
    DataLoader,
    Denormalize,
    Mixture,
    Normalize,
    RAMDataset,
    ShardDataset,
    TokenWindows,
    Weighted,
    audit,
    augment,
    concat,
)
from loaders.errors import (
    BatchError,
    LoadersError,
    ManifestError,
    SampleError,
    SchemaError,
    StateError,
)
from loaders.sampling import ByLength, EpochSampler, Shuffled
from loaders.schema import Array, Boxes, Image, Label, Mask, Schema, Text, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    Case = tuple[Callable[[Any], Any], type[Exception], str]

PHOTOS = Path(__file__).resolve().parent / "data/photos"
SIZES = [(20, 24), (24, 20), (16, 30), (20, 24)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What a newcomer has: arrays, files, a packed dataset of images that vary in size, one of tokens."""
    folder = tmp_path_factory.mktemp("misuse")
    pictures = [np.full((*size, 3), 40 * i, np.uint8) for i, size in enumerate(SIZES)]
    rows = [{"image": p, "label": i % 2, "key": f"k{i}"} for i, p in enumerate(pictures)]
    fields = {"image": Image(codec="png"), "label": Label(classes=("a", "b")), "key": Text()}
    packdata.pack(rows, folder / "packed/train", fields)
    ids = [{"tokens": np.arange(64, dtype=np.uint16), "num_tokens": 64}]
    tokens = {"tokens": Tokens(row_tokens=64), "num_tokens": Array(dtype="int32")}
    packdata.pack(ids, folder / "tokens", tokens, format="parquet")
    (folder / "stats.txt").write_text("mean,std\n")
    images, labels = np.zeros((8, 3, 16, 16), np.uint8), np.arange(8) % 2
    return SimpleNamespace(
        folder=folder,
        path=folder / "packed/train",
        tokens=folder / "tokens",
        images=images,
        labels=labels,
        files=sorted(PHOTOS.glob("boats/*.jpg")),
        ram=RAMDataset.from_arrays(image=images, label=labels),
        shard=ShardDataset(folder / "packed/train"),
    )


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def first(loader: Any) -> Any:
    return next(iter(loader))


def loader_of_one_source(given: SimpleNamespace, batch_size: int) -> Any:
    return DataLoader(Mixture([given.ram, given.ram], batch_from="one"), batch_size)


def state_of_one_batch(given: SimpleNamespace, batch_size: int) -> Any:
    loader = loader_of_one_source(given, batch_size)
    first(loader)
    return loader.state_dict()


CROP = augment.CenterCrop(8)
NUMBERS = TensorDataset(torch.zeros(4))
NORMALIZE = Normalize.imagenet()
SHARES = r"parts must be .*\[0\.9, 0\.1\]"

DATASETS: list[Case] = [
    (
        lambda g: ShardDataset(3),
        TypeError,
        "path must be the folder or URL of what packdata made, got 3",
    ),
    (lambda g: ShardDataset(g.ram), TypeError, "path must be .*, got RAMDataset"),
    (lambda g: ShardDataset(g.folder / "no"), ManifestError, "no such folder.*packdata"),
    (lambda g: ShardDataset(g.files[0]), ManifestError, "a file.*Pass the folder"),
    (lambda g: ShardDataset(g.folder / "packed"), ManifestError, "Choose one .*: train"),
    (
        lambda g: ShardDataset(g.path, fields="image"),
        TypeError,
        r"fields must be a list.*\['image",
    ),
    (
        lambda g: ShardDataset(g.path, fields=["immage"]),
        SchemaError,
        "no field 'immage'; there are",
    ),
    (lambda g: ShardDataset(g.path, fields=[]), SchemaError, "fields is empty; there are"),
    (
        lambda g: ShardDataset(g.path, transform=3),
        TypeError,
        "transform must be a function.*got 3",
    ),
    (lambda g: ShardDataset(g.path, transform={"image": 3}), TypeError, "or {field: function}"),
    (lambda g: ShardDataset(g.path, transform={"x": abs}), SchemaError, "samples have"),
    (lambda g: ShardDataset(g.path, batching="pad"), TypeError, "batching must be {field:"),
    (lambda g: ShardDataset(g.path, check=False), ValueError, "check must be 'first'"),
    (lambda g: ShardDataset(g.path, scale=None), ValueError, "scale must be 1, 1/2, 1/4 or 1/8"),
    (lambda g: ShardDataset(g.path, on_error="skip"), ValueError, "on_error must be 'raise' or"),
    (lambda g: ShardDataset(g.path, cache="1GB"), ValueError, "cache and storage are for URLs"),
    (lambda g: ShardDataset("s3://b/x", storage=3), TypeError, "a mapping of options, got a int"),
    (lambda g: ShardDataset("s3://b/x", storage={1: "x"}), TypeError, "are texts, got 1"),
    (lambda g: RAMDataset(g.images), TypeError, "RAMDataset.from_arrays takes arrays.*an ndarray"),
    (lambda g: RAMDataset.from_frame(g.labels), AttributeError, "from_frame.*from_arrays"),
    (lambda g: RAMDataset(g.files), TypeError, "RAMDataset.from_files loose files"),
    (lambda g: RAMDataset(Subset(g.ram, [1])), TypeError, "source must be .*got a Subset"),
    (lambda g: RAMDataset(g.ram, feilds=[]), TypeError, "did you mean 'fields'"),
    (lambda g: RAMDataset(g.ram, shared=3), ValueError, "shared must be True or False, got 3"),
    (lambda g: RAMDataset(g.ram, decode="yes"), ValueError, "decode must be True or False"),
    (lambda g: RAMDataset(g.ram, device="gpu"), ValueError, "torch knows, such as 'cuda'"),
    (lambda g: g.ram["image"], TypeError, "select.. takes several.*column.. the name of a field"),
    (lambda g: g.ram[8], IndexError, "there is no sample 8, only 8 of them"),
    (lambda g: g.ram.column(["label"]), SchemaError, "no field .'label'.; there are"),
    (lambda g: g.ram.column("labels"), SchemaError, "no field 'labels'; there are"),
    (lambda g: g.ram.find("x"), SchemaError, "has no field 'key'"),
    (lambda g: g.shard.find(3), TypeError, "key must be a text, got 3"),
    (lambda g: g.shard.find("k9"), KeyError, "none of 4 samples has the key 'k9'.* like 'k0'"),
    (lambda g: g.ram.select("x"), TypeError, r"a mask such as dataset.column\('label'\) == 0"),
    (lambda g: g.ram.select(len), TypeError, "whole numbers, or a mask"),
    (lambda g: g.ram.select([True]), ValueError, "one value per sample"),
    (lambda g: g.ram.split(0.5), TypeError, SHARES),
    (lambda g: g.ram.split({"a": 0.5}), TypeError, SHARES),
    (lambda g: g.ram.split([4, 4]), ValueError, SHARES),
    (lambda g: g.ram.split([]), ValueError, SHARES),
    (lambda g: g.ram.split([0.99, 0.01]), ValueError, "none of the 8 samples: use a larger share"),
    (lambda g: g.ram.split(["a", "b"]), TypeError, r"parts\[0\] must be a number, got 'a'"),
    (lambda g: g.ram.split([0.5, 0.5], seed="x"), TypeError, "seed must be a whole number"),
    (lambda g: g.ram.split([0.5, 0.5], stratify=["label"]), TypeError, "the name of a field"),
    (lambda g: g.ram.replace(device="cuda"), TypeError, "settings of a dataset .*got .'device'"),
    (lambda g: g.ram.set_epoch("x"), TypeError, "epoch must be a whole number, got 'x'"),
    (lambda g: g.ram.to_pandas(fields="label"), TypeError, "fields must be a list"),
    (lambda g: concat(g.ram), TypeError, r"write concat\(\[a, b\]\)"),
    (lambda g: concat(g.ram, g.ram), TypeError, r"write concat\(\[a, b\]\)"),
    (lambda g: concat([]), ValueError, "at least one dataset"),
    (lambda g: concat([g.ram, 3]), TypeError, r"datasets\[1\] must be .*got 3"),
    (lambda g: concat([g.ram, g.shard]), SchemaError, "differ in field 'image'"),
    (lambda g: Mixture(g.ram), TypeError, "sources must be a list of datasets"),
    (lambda g: Mixture([]), ValueError, "sources is empty"),
    (lambda g: Mixture([g.ram, 3]), TypeError, "source 1 is a int"),
    (
        lambda g: Mixture([g.ram, RAMDataset.from_arrays(image=g.images, label=g.labels / 2)]),
        SchemaError,
        "field 'label' of sources 0 and 1 differs in kind",
    ),
    (lambda g: Mixture([g.ram] * 2, stop="never"), ValueError, "stop must be 'first_ex.*'never'"),
    (lambda g: Mixture([g.ram] * 2, stop=0), ValueError, "stop must be at least 1, got 0"),
    (lambda g: Mixture([g.ram] * 2, stop=None), TypeError, "stop must be a whole number"),
    (lambda g: Mixture([g.ram] * 2, weights=3), TypeError, "one number per source, got 3"),
    (lambda g: Mixture([g.ram] * 2, weights=["a", 1]), TypeError, "weights must be numbers, got"),
    (lambda g: Mixture([g.ram] * 2, weights=[1]), ValueError, "2 sources and 1 weights"),
    (lambda g: Mixture([g.ram] * 2, batch_from="two"), ValueError, "batch_from must be 'all'"),
    (lambda g: TokenWindows(3), TypeError, "path must be the folder"),
    (lambda g: TokenWindows(g.ram), SchemaError, "pack them with 'packdata tokens'"),
    (lambda g: TokenWindows(g.tokens, "x"), TypeError, "length must be a whole number"),
    (lambda g: TokenWindows(g.tokens, 0), ValueError, "length must be at least 1, got 0"),
    (lambda g: TokenWindows(g.tokens, 999), ValueError, "a smaller length, or tail='pad'"),
    (lambda g: TokenWindows(g.tokens, 8, span=(0,)), ValueError, r"span must lie in \[0, 64\]"),
    (lambda g: TokenWindows(g.tokens, 8, span=(0.5, 9)), TypeError, r"span\[0\] must be a whole"),
    (lambda g: TokenWindows(g.tokens, 8, by="x"), ValueError, "by must be 'stream' or 'document'"),
    (lambda g: TokenWindows(g.tokens, 8).split(0.5), TypeError, SHARES),
    (lambda g: TokenWindows(g.tokens, 8).split([2, 1]), ValueError, SHARES),
]

IN_MEMORY: list[Case] = [
    (lambda g: RAMDataset.from_arrays(g.images), TypeError, "arrays by name, such as image=..."),
    (lambda g: RAMDataset.from_arrays(), ValueError, "at least one array"),
    (
        lambda g: RAMDataset.from_arrays(a="photos"),
        SchemaError,
        "one row per sample, got 'photos'",
    ),
    (lambda g: RAMDataset.from_arrays(a=None), SchemaError, "must be numbers.*got None"),
    (
        lambda g: RAMDataset.from_arrays(a=np.ma.masked_array([1, 2], [0, 1])),
        SchemaError,
        "masked",
    ),
    (lambda g: RAMDataset.from_arrays(a=["x", "y"]), SchemaError, "numpy.unique"),
    (
        lambda g: RAMDataset.from_arrays(a=[[1], [1, 2]]),
        SchemaError,
        "samples of different shapes",
    ),
    (
        lambda g: RAMDataset.from_arrays(a=g.images, decode=True),
        SchemaError,
        r"pass options to RAMDataset",
    ),
    (
        lambda g: RAMDataset.from_arrays(a=torch.ones(2, dtype=torch.bfloat16)),
        SchemaError,
        "BFloat",
    ),
    (lambda g: RAMDataset.from_arrays(a=g.labels, b=g.labels[:3]), SchemaError, "'a': 8, 'b': 3"),
    (lambda g: RAMDataset.from_arrays(a=g.labels, schema=3), TypeError, "schema must be {name:"),
    (lambda g: RAMDataset.from_arrays(a=g.labels, schema={"a": 3}), TypeError, "{name: field}"),
    (
        lambda g: RAMDataset.from_arrays(a=g.labels, schema={"a": Label(classes=("x",))}),
        SchemaError,
        "labels up to 1, there are 1 classes",
    ),
    (
        lambda g: RAMDataset.from_files("a.jpg"),
        TypeError,
        "paths must be a list of files, such as",
    ),
    (lambda g: RAMDataset.from_files(PHOTOS), TypeError, r"paths must be .*glob\('\*.jpg'\)"),
    (lambda g: RAMDataset.from_files([]), ValueError, "does the pattern match"),
    (lambda g: RAMDataset.from_files([3]), TypeError, r"paths\[0\] must be a file, got 3"),
    (lambda g: RAMDataset.from_files(["no.jpg"]), LoadersError, "no.jpg: No such file"),
    (
        lambda g: RAMDataset.from_files(["/dev/null"]),
        LoadersError,
        "null: not a regular file",
    ),
    (lambda g: RAMDataset.from_files([PHOTOS]), LoadersError, "photos: Is a directory"),
    (
        lambda g: RAMDataset.from_files(g.files, 3),
        TypeError,
        "targets must be a list of one class",
    ),
    (lambda g: RAMDataset.from_files(g.files, "label"), TypeError, "targets must be .*'label'"),
    (lambda g: RAMDataset.from_files(g.files, [1]), ValueError, "4 paths and 1 targets"),
    (
        lambda g: RAMDataset.from_files(g.files, [CROP]),
        TypeError,
        "one class number per path, or one name",
    ),
    (lambda g: RAMDataset.from_files(g.files, [0.5] * 4), TypeError, "float64.*packdata.Writer"),
]

AUGMENT: list[Case] = [
    (lambda g: ShardDataset(g.path, augment=CROP), TypeError, r"a list of ops, such as \[Center"),
    (lambda g: g.ram.replace(augment=CROP), TypeError, "augment must be a list of ops"),
    (lambda g: ShardDataset(g.path, augment="flip"), TypeError, "augment must be a list of ops"),
    (lambda g: g.ram.replace(augment=augment.Views(a=[])), TypeError, r"write \[Views"),
    (
        lambda g: g.ram.replace(augment=[augment.CenterCrop]),
        TypeError,
        r"write CenterCrop\(\.\.\.\)",
    ),
    (lambda g: g.ram.replace(augment=[torch.nn.Identity()]), TypeError, "go to transform="),
    (lambda g: g.shard.replace(fields=["label"], augment=[3]), TypeError, r"augment\[0\] must be"),
    (
        lambda g: RAMDataset.from_arrays(image=g.images[:, 0], augment=[CROP]),
        SchemaError,
        r"no field to act on: the fields are image \(array\).*C = 1 .*spatial=2",
    ),
    (
        lambda g: RAMDataset.from_arrays(
            a=g.images.astype("f4"),
            augment=[augment.RandomCrop(8)],
            schema={"a": Array(dims=g.images.shape[1:], spatial=3)},
        ),
        SchemaError,
        "3 x 16 x 16 .*pad_if_needed=True",
    ),
    (
        lambda g: RAMDataset.from_arrays(
            a=g.images.astype("f4"),
            augment=[augment.CenterCrop((8, 8))],
            schema={"a": Array(dims=g.images.shape[1:], spatial=3)},
        ),
        SchemaError,
        "crops 2 axes, the samples have 3.*spatial=",
    ),
    (lambda g: augment.Views([CROP]), TypeError, r"Views\(weak=\[\.\.\.\]"),
    (lambda g: augment.Views(a=CROP), TypeError, "a must be a list of ops"),
    (lambda g: augment.RandomResizedCrop(8, scale=0.5), ValueError, r"\(low, high\).*got 0.5"),
    (lambda g: augment.RandomResizedCrop(8, ratio=("a", 1)), TypeError, r"ratio\[0\] must be a"),
    (lambda g: augment.RandomHorizontalFlip("x"), TypeError, "p must be a number, got 'x'"),
    (lambda g: augment.RandomFlip(2), ValueError, r"p must be in \[0, 1\], got 2"),
    (lambda g: augment.RandomFlip(None), TypeError, "p must be a number, got None"),
    (lambda g: augment.ColorJitter(brightness=(1, 2, 3)), ValueError, r"number or \(low, high\)"),
    (lambda g: augment.GaussianBlur(3, sigma=0), ValueError, "sigma must be a number above 0"),
    (lambda g: augment.RandomErasing(scale=(1, 0)), ValueError, r"scale must be \(low, high\)"),
    (lambda g: augment.RandomErasing(value=(1, 2)), ValueError, "one number, or three"),
    (lambda g: augment.ElasticTransform((1, 2, 3)), ValueError, r"alpha must be .* or \(x, y\)"),
    (lambda g: augment.ElasticTransform(sigma=(0, 5)), ValueError, "sigma must be .* both axes"),
    (lambda g: augment.Resize(8, antialias="no"), ValueError, "antialias must be .*got 'no'"),
    (
        lambda g: g.ram.replace(augment=[augment.Views(a=[]), CROP]),
        SchemaError,
        "Views must be the only entry",
    ),
    (
        lambda g: g.ram.replace(augment=[augment.RandomCrop(8, fill=(1, 2))]),
        SchemaError,
        "fill=.1, 2. has 2 channels, 'image' has 3",
    ),
    (
        lambda g: RAMDataset.from_arrays(
            mask=g.images[:, 0],
            schema={"mask": Mask(size=(16, 16), codec="raw")},
            augment=[augment.RandomInvert()],
        ),
        SchemaError,
        "needs an image field",
    ),
    (
        lambda g: RAMDataset.from_arrays(
            mask=g.images[:, 0].astype(np.uint32),
            schema={"mask": Mask(size=(16, 16), dtype="uint32", codec="raw")},
            augment=[augment.RandomRotation(20)],
        )[0],
        SampleError,
        r"sample 0 .*cannot warp a uint32 image of shape \(16, 16\)",
    ),
    (
        lambda g: g.ram.replace(augment=[augment.ElasticTransform()] * 2)[0],
        SampleError,
        "once per list of ops",
    ),
    (lambda g: augment.Cutout(), AttributeError, "go to transform="),
    (lambda g: augment.CentreCrop(8), AttributeError, "did you mean 'CenterCrop'"),
    (lambda g: BatchAugment(CROP), TypeError, "augment must be a list of ops"),
    (lambda g: BatchAugment([CROP], seed="x"), TypeError, "seed must be a whole number"),
    (lambda g: BatchAugment([CROP], normalize=3), TypeError, "normalize must be a Normalize"),
    (lambda g: BatchAugment([CROP])(g.images), TypeError, "takes tensors .*got an ndarray"),
    (
        lambda g: BatchAugment([CROP])(torch.zeros(8, 3, 9, 9)),
        BatchError,
        r"one whole number per image \(8\), got None",
    ),
    (lambda g: BatchAugment([CROP])(torch.zeros(8, 3, 9, 9), indices=3), BatchError, "got 3"),
    (
        lambda g: BatchAugment([augment.RandomInvert(1)])(
            torch.zeros(1, 2, 9, 9, dtype=torch.uint8), indices=[0]
        ),
        BatchError,
        "pixel ops take uint8 images",
    ),
    (
        lambda g: BatchAugment([augment.RandomRotation((9, 9))])(
            torch.zeros(1, 3, 9, 9, dtype=torch.uint16), indices=[0]
        ),
        BatchError,
        "only uint8 images can be rotated",
    ),
    (
        lambda g: BatchAugment(
            [augment.RandomCrop(8, 2, padding_mode="reflect"), augment.RandomRotation((9, 9))]
        )(torch.zeros(1, 3, 9, 9, dtype=torch.uint8), indices=[0]),
        BatchError,
        "padding_mode='reflect' .* on the host",
    ),
    (
        lambda g: BatchAugment(
            [
                augment.ScaleJitter((30, 30)),
                augment.ElasticTransform(),
                augment.RandomCrop(20, pad_if_needed=True),
            ]
        )(torch.zeros(4, 3, 40, 50, dtype=torch.uint8), indices=range(4)),
        BatchError,
        "different sizes cannot be displaced on a device",
    ),
    (
        lambda g: BatchAugment([CROP])(torch.zeros(1, 3, 9, 9), indices=[0], epoch="x"),
        TypeError,
        "epoch must be a whole number",
    ),
]

NORMALIZING: list[Case] = [
    (
        lambda g: NORMALIZE(first(DataLoader(g.shard, 4, num_workers=0)).image),
        TypeError,
        "a list of 4: images of different sizes come as a list.*RandomResizedCrop",
    ),
    (lambda g: NORMALIZE(g.images), TypeError, r"an ndarray of shape \(8"),
    (lambda g: NORMALIZE(first(DataLoader(g.ram, 4))), TypeError, "a whole batch of image, label"),
    (lambda g: NORMALIZE(None), TypeError, "a tensor of integer images, got None"),
    (
        lambda g: NORMALIZE(torch.zeros(2, 3, 4, 4)),
        BatchError,
        "integer images, got torch.float32",
    ),
    (lambda g: Normalize(1, 2), TypeError, "mean must be a list of numbers, one per channel"),
    (lambda g: Normalize(["a"], [1.0]), TypeError, r"mean\[0\] must be a number, got 'a'"),
    (lambda g: Normalize.imagenet("float32"), ValueError, "a floating dtype of torch, got 'float"),
    (lambda g: Normalize.from_stats(g.folder / "x.csv"), ValueError, "'packdata stats .*x.csv: "),
    (lambda g: Normalize.from_stats(g.folder / "stats.txt"), ValueError, "'packdata stats "),
    (lambda g: Normalize.from_stats(3), TypeError, "stats must be what 'packdata stats"),
    (lambda g: Normalize.from_stats({"a": 1}), ValueError, "must have mean and std"),
    (lambda g: Denormalize.of(3), TypeError, "takes a Normalize, got 3"),
    (lambda g: loaders.MixUp(3)([1], torch.zeros(1), [0]), TypeError, "tensors .* got .1."),
    (lambda g: loaders.CutMix(3, alpha=float("inf")), ValueError, "alpha .* inf"),
    (lambda g: Denormalize.of(NORMALIZE)([1]), TypeError, "a tensor of floats, got .1"),
]

LOADING: list[Case] = [
    (lambda g: DataLoader("packed"), TypeError, r"is it ShardDataset\('packed'\)"),
    (lambda g: DataLoader(None), TypeError, "have __len__ and __getitem__.*got None"),
    (lambda g: DataLoader(ShardDataset), TypeError, "have __len__ and __getitem__"),
    (lambda g: DataLoader([g.ram, g.ram]), TypeError, "loaders.concat, or loaders.Mixture"),
    (lambda g: DataLoader(iter([1])), TypeError, "have __len__ and __getitem__"),
    (lambda g: DataLoader(g.ram, shufle=True), TypeError, "'shufle'.*did you mean 'shuffle'"),
    (lambda g: DataLoader(NoLength()), TypeError, "dataset has no length.*add __len__"),
    (
        lambda g: DataLoader(g.ram, shuffle=True, sampler=Shuffled(8)),
        ValueError,
        "Shuffled is an order of its own: leave out shuffle",
    ),
    (lambda g: DataLoader(g.ram, "4"), ValueError, "batch_size must be a whole number, got '4'"),
    (lambda g: DataLoader(g.ram, 0), ValueError, "batch_size must be at least 1, got 0"),
    (
        lambda g: DataLoader(g.ram, shuffle="yes"),
        ValueError,
        "shuffle must be .*'block' or 'lanes', got 'yes'",
    ),
    (
        lambda g: DataLoader(g.ram, shuffle=3),
        ValueError,
        "shuffle must be True, False, 'block' or",
    ),
    (lambda g: DataLoader(g.ram, sampler="x"), TypeError, "sampler must be an order such as Bal"),
    (lambda g: DataLoader(g.ram, sampler=Balanced), TypeError, r"order must be an order, such as"),
    (lambda g: DataLoader(g.ram, batch_sampler=3), TypeError, "batch_sampler must be an order"),
    (
        lambda g: first(DataLoader(g.ram, batch_sampler=[0])),
        TypeError,
        "batch_sampler yields lists",
    ),
    (
        lambda g: DataLoader(g.ram, sampler=Balanced([0, 1] * 9, 18)),
        ValueError,
        "sampler is for 18 samples, the dataset has 8",
    ),
    (
        lambda g: DataLoader(g.ram, sampler=Weighted([1.0] * 18, 18)),
        ValueError,
        "sampler is for 18 samples, the dataset has 8",
    ),
    (
        lambda g: DataLoader(g.ram, sampler=Weighted([1.0] * 5, 18)),
        ValueError,
        "sampler is for 5 samples, the dataset has 8",
    ),
    (
        lambda g: DataLoader(g.ram, sampler=ByLength([1] * 9, 8)),
        ValueError,
        "sampler is for 9 samples, the dataset has 8",
    ),
    (lambda g: DataLoader(g.ram, num_workers="lots"), TypeError, "num_workers must be a whole"),
    (lambda g: DataLoader(g.ram, num_workers=1.5), TypeError, "num_workers must be a whole"),
    (lambda g: DataLoader(g.ram, num_workers=True), TypeError, "a whole number, got True"),
    (
        lambda g: DataLoader(g.ram, num_workers=-1),
        ValueError,
        "num_workers must be at least 0",
    ),
    (lambda g: DataLoader(g.ram, collate_fn=3), TypeError, "collate_fn must be a function"),
    (
        lambda g: DataLoader(g.ram, worker_init_fn=3),
        TypeError,
        "worker_init_fn must be a function",
    ),
    (lambda g: DataLoader(g.ram, timeout="x"), TypeError, "timeout must be a number"),
    (lambda g: DataLoader(g.ram, generator=3), TypeError, "generator must be a torch.Generator"),
    (
        lambda g: DataLoader(g.ram, prefetch_factor=0),
        ValueError,
        "prefetch_factor must be at least",
    ),
    (lambda g: DataLoader(g.ram, backend="threads"), ValueError, "did you mean 'thread'"),
    (lambda g: DataLoader(g.ram, device="gpu"), ValueError, "torch knows, such as 'cuda'.*'gpu'"),
    (lambda g: DataLoader(g.ram, device=3.5), TypeError, "torch knows, such as 'cuda'.*3.5"),
    (
        lambda g: DataLoader(g.ram, device_prefetch="x"),
        TypeError,
        "device_prefetch must be a whole",
    ),
    (
        lambda g: DataLoader(g.ram, device_prefetch=None),
        TypeError,
        "device_prefetch must be a whole number, got None",
    ),
    (
        lambda g: DataLoader(g.ram, device_prefetch=-1),
        ValueError,
        "device_prefetch must be at least 0, got -1",
    ),
    (
        lambda g: DataLoader(g.ram, augment_on="gpu"),
        ValueError,
        "augment_on must be 'auto' or 'host'",
    ),
    (lambda g: DataLoader(g.ram, seed="x"), TypeError, "seed must be a whole number, got 'x'"),
    (lambda g: DataLoader(g.ram, rank=0), LoadersError, "world_size=None .*pass both"),
    (lambda g: DataLoader(g.ram, world_size=2), LoadersError, "rank=None .*pass both"),
    (
        lambda g: DataLoader(g.ram, rank="0", world_size=2),
        TypeError,
        "rank must be a whole number",
    ),
    (lambda g: DataLoader(g.ram, rank=2, world_size=2), ValueError, "rank must be below 2, got 2"),
    (lambda g: DataLoader(g.ram, pad="x"), ValueError, "pad must be True, False or"),
    (
        lambda g: DataLoader(g.ram, stall_warning_s="x"),
        TypeError,
        "stall_warning_s must be a number",
    ),
    (lambda g: DataLoader(g.ram).set_epoch("x"), TypeError, "epoch must be a whole number"),
    (lambda g: DataLoader(g.ram).set_epoch(-1), ValueError, "epoch must be at least 0, got -1"),
    (
        lambda g: DataLoader(g.ram).load_state_dict(None),
        StateError,
        "state_dict.. returned, got Non",
    ),
    (lambda g: DataLoader(g.ram).load_state_dict({}), StateError, "version None"),
    (
        lambda g: DataLoader(NUMBERS, sampler=[0, 1]).load_state_dict(
            DataLoader(NUMBERS, shuffle=True, generator=torch.Generator()).state_dict()
        ),
        StateError,
        "another number of generators",
    ),
    (
        lambda g: loader_of_one_source(g, 4).load_state_dict(
            state_of_one_batch(g, 2), weights="new"
        ),
        StateError,
        "taken at sample 2 of its epoch, within one of the blocks of 4",
    ),
    (
        lambda g: DataLoader(g.ram).load_state_dict({"version": 1, "dataset": g.ram.fingerprint}),
        StateError,
        "what state_dict.. returned, of version 1",
    ),
    (
        lambda g: DataLoader(Mixture([g.ram], stop=10, batch_from="one"), 4),
        ValueError,
        "the batch_size of the loader: stop must be a multiple",
    ),
    (
        lambda g: first(DataLoader(g.shard.replace(transform=lambda sample: None), 2)),
        BatchError,
        "transform returned None for the batch",
    ),
    (
        lambda g: first(
            DataLoader(
                g.shard.replace(fields=["label"], transform={"label": lambda label: None}), 2
            )
        ),
        BatchError,
        "transform returned None for field 'label'",
    ),
    (
        lambda g: first(DataLoader(g.shard.replace(transform=lambda s: {"x": s.image}), 2)),
        BatchError,
        r"at the batch: .*sample\._replace",
    ),
    (
        lambda g: first(DataLoader(g.shard.replace(transform={"image": torch.relu}), 2)),
        BatchError,
        "field 'image': .*shapes .*pass collate_fn",
    ),
    (
        lambda g: first(
            DataLoader(g.shard.replace(transform={"image": lambda i: i.numpy()[..., ::-1]}), 2)
        ),
        BatchError,
        "field 'image': .*negative",
    ),
    (lambda g: loaders.collate(3), BatchError, "a list of samples, got 3"),
    (lambda g: loaders.collate([]), BatchError, r"a list of samples, got \[\]"),
]

ORDERS: list[Case] = [
    (lambda g: Balanced(g.ram, 10), TypeError, r"such as dataset.column\('label'\), got RAM"),
    (
        lambda g: Balanced("label", 10),
        TypeError,
        r"such as dataset.column\('label'\), got 'label'",
    ),
    (lambda g: Balanced(g.labels, "x"), TypeError, "num_samples must be a whole number"),
    (lambda g: Balanced(g.labels, 2.5), TypeError, "num_samples must be a whole number"),
    (lambda g: Balanced(g.labels, 8, seed="x"), TypeError, "seed must be a whole number"),
    (lambda g: Weighted(g.ram, 10), TypeError, "weights must have one value for each sample"),
    (lambda g: Weighted(["a"], 1), TypeError, "weights must be numbers, got .'a'"),
    (lambda g: Weighted([1.0], 1, seed=0.5), TypeError, "seed must be a whole number"),
    (lambda g: BlockShuffled(g.ram), TypeError, "n must be a whole number, got RAMDataset"),
    (lambda g: Shuffled(8, "x"), TypeError, "seed must be a whole number"),
    (lambda g: EpochSampler(g.ram), TypeError, "or a number of samples, got RAMDataset"),
    (
        lambda g: EpochSampler(8).load_state_dict(None),
        StateError,
        "returned, of version 1, got None",
    ),
    (lambda g: audit(g.ram), TypeError, "length must be a whole number"),
    (lambda g: audit(8, world_size=0), ValueError, "world_size must be at least 1"),
    (lambda g: audit(8, order=3), TypeError, "order must be an order"),
]

THE_REST: list[Case] = [
    (lambda g: loaders.profile(3), TypeError, "loader must be a loaders.DataLoader"),
    (lambda g: loaders.profile(g.ram), TypeError, "loader must be a loaders.DataLoader"),
    (lambda g: loaders.profile(DataLoader(g.ram), steps="x"), TypeError, "steps must be a whole"),
    (lambda g: loaders.profile(DataLoader(g.ram), trace=3), TypeError, "trace must be a file"),
    (lambda g: loaders.dump_on("SIGNONE"), ValueError, "must name a signal .SIGUSR1"),
    (lambda g: loaders.dump_on(999), ValueError, "must name a signal .*got 999"),
    (lambda g: loaders.register_codec("x", 3), TypeError, "a name and a function"),
    (lambda g: loaders.ShardDatset, AttributeError, "did you mean 'ShardDataset'"),
    (lambda g: loaders.InflateOnDevice, AttributeError, "the dataset itself"),
    (lambda g: augment.carry_out, AttributeError, "removed before 1.0"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        pytest.param(*case, id=f"{name} {number}: {case[2]}")
        for name, cases in {
            "datasets": DATASETS, "in memory": IN_MEMORY, "augment": AUGMENT, "loading": LOADING,
            "normalizing": NORMALIZING, "orders": ORDERS, "the rest": THE_REST,
        }.items()
        for number, case in enumerate(cases)
    ],
)  # fmt: skip
def test_wrong_use_is_told_with_what_to_do(
    given: SimpleNamespace, call: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        call(given)

    assert len(str(raised.value)) < 1000, "no array or dataset is printed whole"


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda g: DataLoader(g.ram, device="cuda"), "device"),
        (lambda g: RAMDataset(g.ram, device="cuda"), "device"),
        (lambda g: RAMDataset(g.ram, pin=True), "pin"),
    ],
    ids=["loader", "resident", "pinned"],
)
def test_a_device_that_is_not_there_is_told_at_once(
    given: SimpleNamespace, call: Any, option: str
) -> None:
    told = rf"device='cuda' cannot be used: .*Leave {option} out"

    with pytest.raises(LoadersError, match=told):
        call(given)


# -- what is right stays so ------------------------------------------------------------------------


def test_settings_of_arrays_in_memory_are_no_columns(given: SimpleNamespace) -> None:
    dataset = RAMDataset.from_arrays(
        image=given.images, label=given.labels, augment=[CROP], fields=["label", "image"]
    )

    assert dataset.names == ("label", "image")
    assert dataset[0].image.shape == (3, 8, 8)


def test_numbers_of_numpy_are_numbers(given: SimpleNamespace) -> None:
    loader = DataLoader(given.ram, np.int64(4), seed=np.int32(3), num_workers=np.int8(0))

    assert [len(batch.label) for batch in loader] == [4, 4]
    assert len(given.ram.split(np.array([0.5, 0.5]), seed=np.uint8(1))) == 2
    assert len(Weighted(torch.ones(8), np.int64(8)).describe()) == 5


def test_settings_stay_when_the_augmented_field_is_not_asked_for(given: SimpleNamespace) -> None:
    """Augmentation without a picture is a mistake only where there never was one."""
    labels = given.shard.replace(augment=[CROP]).replace(fields=["label"])

    assert [sample.label.item() for sample in labels] == [0, 1, 0, 1]
    assert len(labels + labels) == 8
    assert len(RAMDataset(labels, progress=False)) == 4


def test_a_signal_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    monkeypatch.setattr(loaders.dumping, "_installed", set())

    loaders.dump_on("SIGUSR2")

    assert signal.signal(signal.SIGUSR2, before) is not before


# -- what is no error, and is said -------------------------------------------------------------------


def test_an_epoch_without_a_batch_is_warned_of(given: SimpleNamespace) -> None:
    loader = DataLoader(given.ram, 5, drop_last=True, rank=0, world_size=2)

    with pytest.warns(UserWarning, match=r"no batch \(8 samples, batch_size=5, world_size=2\)"):
        assert list(loader) == []


def test_a_loader_shows_what_it_serves_and_how(given: SimpleNamespace) -> None:
    shown = repr(DataLoader(given.ram, 4, shuffle=True, num_workers=2, device="cpu"))

    assert shown == (
        "DataLoader(RAMDataset(8 samples of image, label), batch_size=4, order='Shuffled', "
        "num_workers=2, backend='thread', device='cpu')"
    )
    foreign = DataLoader(TensorDataset(torch.zeros(4)), sampler=[1, 2])
    assert repr(foreign) == (
        "DataLoader(a TensorDataset of 4, batch_size=1, order='list', num_workers=0, "
        "backend='process')"
    )
    assert foreign.epoch == 0


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda g: TokenWindows(g.tokens, 7), "TokenWindows(9 windows of 7, 64 tokens)"),
        (
            lambda g: TokenWindows(g.tokens, 48),
            "1 windows of 48, 64 tokens, the last 15 left out)",
        ),
        (
            lambda g: TokenWindows(g.tokens, 48, tail="pad"),
            "TokenWindows(2 windows of 48, 64 tokens, 33.33% padding)",
        ),
        (lambda g: Denormalize.of(NORMALIZE), "dtype=torch.uint8"),
        (lambda g: BatchAugment([CROP]), "ops=[CenterCrop(size=(8, 8), fill_mask=None)], seed=0)"),
        (lambda g: loaders.MixUp(10), "MixUp(num_classes=10, alpha=1.0, seed=0)"),
        (
            lambda g: loaders.Mosaic(Schema({"image": Image(size=(8, 8)), "boxes": Boxes()})),
            "center_range=(0.3, 0.7), seed=0",
        ),
        (
            lambda g: loaders.JpegOnDevice(RAMDataset.from_files(g.files)),
            "JpegOnDevice(RAMDataset(4 samples of image))",
        ),
    ],
)
def test_what_serves_or_changes_samples_shows_its_settings(
    given: SimpleNamespace, make: Callable[[Any], Any], shown: str
) -> None:
    assert shown in repr(make(given))


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({"num_workers": 0}, "inline"),
        ({"num_workers": 1, "backend": "thread"}, "thread"),
        ({"num_workers": 1, "backend": "subprocess"}, "subprocess"),
        ({"num_workers": 1, "backend": "process"}, "process"),
    ],
)
def test_statistics_name_the_backend(
    given: SimpleNamespace, settings: dict[str, Any], backend: str
) -> None:
    assert DataLoader(given.ram, **settings).stats().backend == backend
