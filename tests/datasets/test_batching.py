"""Arrays of different lengths in a batch: along any axis, and as a transform leaves them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loaders
import packdata
from loaders import DataLoader, Mixture, RAMDataset, ShardDataset
from loaders.errors import BatchError, SchemaError
from loaders.schema import Array, Boxes, Field, Image, Keypoints
from tests.packdata.packing import pack

LENGTHS = [3, 5, 2, 5]
FIELDS: dict[str, Any] = {
    "sound": Array(dtype="float32", dims=(1, None)),
    "edges": Array(dtype="int64", dims=(2, None)),
    "middle": Array(dtype="uint16", dims=(2, None, 3)),
    "ids": Array(dtype="int32", dims=(None,)),
    "boxes": Boxes(),
    "points": Keypoints(3),
}


def row(n: int, add: int = 0) -> dict[str, Any]:
    return {
        "sound": np.arange(n, dtype=np.float32)[None] + add,
        "edges": np.arange(2 * n).reshape(2, n) + add,
        "middle": np.arange(6 * n, dtype=np.uint16).reshape(2, n, 3) + add,
        "ids": np.arange(n, dtype=np.int32) + add,
        "boxes": np.ones((n, 4), np.float32) * [0, 0, 1, 1],
        "points": np.ones((n, 3, 2), np.float32) + add,
    }


AXES = {"sound": 1, "edges": 1, "middle": 1, "ids": 0, "boxes": 0, "points": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [row(n, 10 * i) for i, n in enumerate(LENGTHS)]
    return pack(tmp_path_factory.mktemp("batching") / "a", FIELDS, rows)


def same(sample: Any) -> Any:
    return sample


def anew(sample: Any) -> Any:
    return sample._replace(**{name: value.clone() for name, value in sample._asdict().items()})


def first_two(sample: Any) -> Any:
    return sample._replace(ids=sample.ids[:2], edges=sample.edges[:, :2])


def check_joined(name: str, form: Any, values: Any, expected: list[Any]) -> None:
    """Compare what a batch has with the arrays, put together by hand."""
    axis = AXES[name]
    if form == "offsets":
        assert values.offsets.tolist() == np.cumsum([0, *LENGTHS]).tolist()
        assert torch.equal(values.values, torch.cat(expected, axis))
        return
    assert values.lengths.tolist() == LENGTHS
    assert values.values.shape[axis + 1] == max(LENGTHS)
    for padded, array in zip(values.values, expected, strict=True):
        n = array.shape[axis]
        assert torch.equal(padded.narrow(axis, 0, n), array)
        assert (padded.narrow(axis, n, max(LENGTHS) - n) == (0 if form == "pad" else 7)).all()


@pytest.mark.parametrize(
    ("form", "transform", "kind"),
    [
        (form, transform, (ShardDataset, RAMDataset)[(i + k) % 2])
        for i, form in enumerate(("pad", ("pad", 7), "offsets"))
        for k, transform in enumerate((None, same, anew))
    ],
)
def test_arrays_are_joined_along_the_axis_that_varies(
    folder: Path, form: Any, transform: Any, kind: Any
) -> None:
    plain = ShardDataset(folder, fields=list(FIELDS))
    dataset = kind(
        folder, fields=list(FIELDS), transform=transform, batching=dict.fromkeys(FIELDS, form)
    )
    for num_workers in (0, 2):
        (batch,) = DataLoader(dataset, len(LENGTHS), num_workers=num_workers)
        for name in FIELDS:
            check_joined(
                name, form, batch[batch._fields.index(name)], [getattr(s, name) for s in plain]
            )
    read = dataset.__getitems__(range(len(LENGTHS)))
    for name in FIELDS:
        joined = getattr(loaders.collate(read), name)
        if name != "middle":  # torch pickles no uint16
            copy = pickle.loads(pickle.dumps(joined))
            assert type(copy) is type(joined)
            assert all(map(torch.equal, copy, joined))
            assert copy.form == joined.form
        # As torch, Accelerate and Lightning move them; later pads need the value.
        assert (
            type(joined)(*joined).form == joined._replace(values=joined.values).form == joined.form
        )
        for i, sample in enumerate(read):
            assert torch.equal(getattr(sample, name), getattr(plain[i], name))


@pytest.mark.parametrize("form", ["pad", ("pad", 7), "offsets"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_mixture_joins_them_alike(folder: Path, form: Any, is_apart: bool) -> None:
    plain = ShardDataset(folder, fields=list(FIELDS))
    one = plain.replace(batching=dict.fromkeys(FIELDS, form))
    other = one.replace(on_error="replace") if is_apart else one  # else they are read together
    mixture = Mixture([one.select([0, 3]), other.select([1, 2])], [1, 1])
    read = mixture.__getitems__(range(4))
    for name in FIELDS:
        arrays = [getattr(sample, name) for sample in read]
        lengths = [array.shape[AXES[name]] for array in arrays]
        assert sorted(lengths) == sorted(LENGTHS)
        joined = getattr(read.batch, name)
        if form == "offsets":
            assert torch.equal(joined.values, torch.cat(arrays, AXES[name]))
        elif form != "pad":
            behind = joined.values[lengths.index(2)].narrow(AXES[name], 2, 3)
            assert (behind == 7).all()


def test_equal_shapes_after_a_transform_are_stacked(folder: Path) -> None:
    dataset = ShardDataset(folder, fields=["ids", "edges", "boxes"], transform=first_two)
    for num_workers in (0, 2):
        for batch in DataLoader(dataset, 3, num_workers=num_workers):
            num = len(batch.boxes)
            assert batch.ids.shape == (num, 2)
            assert batch.edges.shape == (num, 2, 2)
            assert isinstance(batch.boxes, list)
    asked = dataset.replace(batching={"ids": "list", "edges": "pad"})
    batch = next(iter(DataLoader(asked, 2)))
    assert isinstance(batch.ids, list)
    assert batch.edges.lengths.tolist() == [2, 2]
    # What a transform left as it was is a list, however long the arrays of a batch are.
    for transform in (None, same, {"edges": torch.clone}):
        left = dataset.replace(transform=transform).select([1, 3])
        (batch,) = DataLoader(left, 2)
        assert isinstance(batch.ids, list)
        assert isinstance(batch.edges, list) == (not isinstance(transform, dict))


def test_what_a_transform_made_is_judged_then(folder: Path, tmp_path: Path) -> None:
    rows = [{"image": np.zeros((4, n, 3), np.uint8), "fixed": np.arange(6)} for n in LENGTHS]
    fields = {"image": Image(codec="raw"), "fixed": Array(dims=(6,))}
    packdata.pack(rows, tmp_path / "p", fields)

    def patches(sample: Any) -> Any:
        width = sample.image.shape[2]
        return sample._replace(image=torch.ones(width, 7) * -1, fixed=sample.fixed[:width])

    forms = {"image": ("pad", -0.5), "fixed": "offsets"}
    (batch,) = DataLoader(ShardDataset(tmp_path / "p", transform=patches, batching=forms), 4)
    assert batch.image.lengths.tolist() == LENGTHS
    assert batch.image.values.shape == (4, 5, 7)
    assert batch.image.values[2, 2:].unique().tolist() == [-0.5]
    assert batch.fixed.offsets.tolist() == np.cumsum([0, *LENGTHS]).tolist()
    for wrong in ({"image": "pad"}, {"fixed": "pad"}):
        with pytest.raises(SchemaError):
            ShardDataset(tmp_path / "p", batching=wrong)

    sounds = ShardDataset(folder, fields=["ids"])
    joined: list[tuple[Any, Any, int]] = [
        ((1, -1), "pad", 1),
        ((-1, 1), "offsets", 0),
        ((1, 1, -1), ("pad", 3, -1), 2),
    ]
    for shape, form, axis in joined:
        made = sounds.replace(
            transform={"ids": lambda x, s=shape: x.view(s)}, batching={"ids": form}
        )
        for size in (1, 4):
            padded: Any = next(iter(DataLoader(made, size)))
            assert padded.ids.values.dim() == len(shape) + (form != "offsets")
            if form != "offsets":
                assert padded.ids.lengths.tolist() == LENGTHS[:size]
                assert padded.ids.values.shape[axis + 1] == max(LENGTHS[:size])
    for transform, form in (
        (lambda x: x.expand(4, -1), "pad"),  # differs along its second axis
        (lambda x: x[0], "pad"),
        (lambda x: x.to(torch.uint8), ("pad", -1)),
        (lambda x: x.expand(len(x), -1), ("offsets", 1)),
    ):
        bad = sounds.replace(transform={"ids": transform}, batching={"ids": form})
        with pytest.raises(BatchError):
            list(DataLoader(bad, 4))
    spectra = sounds.replace(
        transform={"ids": lambda x: x.expand(4, -1)}, batching={"ids": ("pad", 0, -1)}
    )
    padded = next(iter(DataLoader(spectra, 4)))
    assert padded.ids.values.shape == (4, 4, 5)
    assert padded.ids.lengths.tolist() == LENGTHS


def test_pictures_that_a_transform_makes_come_as_a_list() -> None:
    images = np.arange(1, 4, dtype=np.uint8)[:, None, None, None] * np.ones((3, 8, 8), np.uint8)
    crop = {"image": lambda image: image[:, : image[0, 0, 0]]}
    data = RAMDataset.from_arrays(image=images, transform=crop)

    batch = next(iter(DataLoader(data.replace(batching={"image": "list"}), 3)))

    assert [image.shape for image in batch.image] == [(3, 1, 8), (3, 2, 8), (3, 3, 8)]


def test_forms_that_are_none_are_refused(folder: Path) -> None:
    wrongs: list[Any] = [
        ("offsets", 0.5),
        ("pad", 0, 1, 2),
        ("pad", 0, "x"),
        ("pad", True),
        (),
        "equal",
    ]
    for wrong in wrongs:
        with pytest.raises(SchemaError):
            ShardDataset(folder, fields=["ids"], batching={"ids": wrong})


def test_a_pad_value_that_the_dtype_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"x": Array(dtype="uint8", dims=(None,))}
    folder = pack(tmp_path / "a", fields, [{"x": np.zeros(i, np.uint8)} for i in range(4)])

    with pytest.raises(SchemaError, match="-100 is no value of uint8"):
        ShardDataset(folder, batching={"x": ("pad", -100)})
