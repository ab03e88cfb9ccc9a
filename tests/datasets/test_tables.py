"""Packed tables as datasets: rows by one gather a field, columns by name, and a model that learns from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset
from loaders.data.store import Store
from loaders.errors import SchemaError
from loaders.schema import Categories, Features
from packdata.tables import pack_tables
from tests.packdata.packing import pack_samples

ROWS = 3000


def frame() -> pd.DataFrame:
    """Return prices that follow from size, cut and color, and a little chance."""
    rng = np.random.default_rng(0)
    size, cut = rng.uniform(0.2, 2, ROWS), rng.integers(0, 3, ROWS)
    color = rng.integers(0, 300, ROWS)
    price = 3 * size + np.array([0.0, 1.0, -1.0])[cut] + rng.normal(0, 0.1, ROWS)
    words = np.array(["fair", "good", "ideal"])[cut]
    return pd.DataFrame(
        {
            "size": size,
            "cut": words,
            "color": [f"c{i}" for i in color],
            "depth": color % 7,
            "price": price,
        }
    )


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    frame().to_csv(folder / "t.csv", index=False)
    options: dict[str, Any] = {"standardize": True, "dtype": "float32", "shard_bytes": 20_000}
    pack_tables(folder / "t.csv", folder / "packed", target=("price",), **options)
    return folder / "packed"


@pytest.mark.parametrize("kind", [ShardDataset, RAMDataset])
def test_batches_are_matrices_with_wide_categories(packed: Path, kind: Any) -> None:
    dataset, table = kind(packed), frame()
    assert len(getattr(dataset.store, "shards", [1, 2])) > 1 or kind is RAMDataset
    field = dataset.schema.fields["categories"]
    assert isinstance(field, Categories)
    assert field.dtype == "uint16"

    order = np.random.default_rng(1).permutation(ROWS)
    batch = dataset.__getitems__(order).batch

    assert batch._fields == ("features", "categories", "price")
    assert [value.dtype for value in batch] == [torch.float32, torch.int64, torch.float32]
    np.testing.assert_allclose(batch.price, table.price[order], rtol=1e-6)
    cuts = [field.vocabularies[0][code - 1] for code in batch.categories[:, 0].tolist()]
    assert cuts == table.cut[order].tolist()
    stored = dataset.column("categories")
    np.testing.assert_array_equal(stored[order], batch.categories)
    sample = dataset[5]
    assert sample.categories.tolist() == stored[5].tolist()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_number_of_workers_serves_the_same_rows(
    packed: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.datasets.reading.fixed.PART_BYTES", 64)  # several parts a batch
    dataset = ShardDataset(packed)
    loader = DataLoader(dataset, batch_size=256, shuffle=True, seed=3, num_workers=num_workers)
    plain = DataLoader(dataset, batch_size=256, shuffle=True, seed=3, num_workers=0)

    for batch, expected in zip(loader, plain, strict=True):
        for values, others in zip(batch, expected, strict=True):
            assert torch.equal(values, others)


def test_a_batch_is_one_gather_a_field(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, calls = ShardDataset(packed), []
    gather = Store.gather

    def counting(self: Store, field: str, rows: Any, out: Any) -> None:
        calls.append((field, len(rows)))
        gather(self, field, rows, out)

    monkeypatch.setattr(Store, "gather", counting)
    monkeypatch.setattr(Store, "records", None)  # nothing may go record by record
    dataset.__getitems__(range(0, ROWS, 2))

    assert calls == [(name, ROWS // 2) for name in ("features", "categories", "price")]


def test_columns_have_their_names(packed: Path) -> None:
    dataset, table = ShardDataset(packed), frame()
    features = dataset.schema.fields["features"]
    assert isinstance(features, Features)

    size = dataset.column("size").astype(np.float64) * features.std[0] + features.mean[0]

    np.testing.assert_allclose(size, table["size"], rtol=1e-5)
    np.testing.assert_array_equal(dataset.column("cut"), dataset.column("categories")[:, 0])
    assert not dataset.column("cut").flags.writeable
    with pytest.raises(SchemaError):
        dataset.column("weight")


def test_a_data_frame_has_the_table_again(packed: Path) -> None:
    dataset, table = ShardDataset(packed), frame()

    found = dataset.select([7, 3, 3]).to_pandas()

    assert list(found) == ["size", "depth", "cut", "color", "price"]
    assert found.cut.tolist() == table.cut[[7, 3, 3]].tolist()
    assert found.color.tolist() == table.color[[7, 3, 3]].tolist()
    np.testing.assert_allclose(found.price, table.price[[7, 3, 3]], rtol=1e-6)
    assert list(dataset.to_pandas(["price", "sample_id"])) == ["price", "sample_id"]


def test_fields_that_are_no_columns_are_left_out_or_refused(tmp_path: Path) -> None:
    import packdata
    from loaders.schema import Array, Json, Label, Text

    fields = {
        "x": Array(dims=(2, 2)),
        "n": Array(dtype="int32"),
        "label": Label(classes=("a", "b")),
        "word": Text(),
        "note": Json(),
    }
    rows = [
        {"x": np.zeros((2, 2)), "n": i, "label": i % 2, "word": f"w{i}", "note": {"i": i}}
        for i in range(4)
    ]
    packdata.pack(rows, tmp_path / "p", fields)
    dataset = ShardDataset(tmp_path / "p")

    found = dataset.to_pandas()

    assert found.to_dict("list") == {
        "n": [0, 1, 2, 3],
        "label": ["a", "b", "a", "b"],
        "word": ["w0", "w1", "w2", "w3"],
        "note": [{"i": i} for i in range(4)],
    }
    with pytest.raises(SchemaError):
        dataset.to_pandas(["x"])
    with pytest.raises(SchemaError):
        dataset.column("note")


def test_a_data_frame_has_the_fields_that_samples_have(tmp_path: Path) -> None:
    """In their order, with what is computed; others on request."""
    folder = pack_samples(tmp_path / "p", 3)

    frames = [
        ShardDataset(folder).to_pandas(),
        ShardDataset(folder, fields=["key", "image", "sample_id"]).to_pandas(),
        ShardDataset(folder, fields=["image"]).to_pandas(["score"]),
    ]

    assert [list(frame) for frame in frames] == [["label"], ["key", "sample_id"], ["score"]]
    with pytest.raises(SchemaError):
        ShardDataset(folder, fields=["image"]).to_pandas()


class Prices(torch.nn.Module):
    """A linear model over numbers and embedded categories."""

    def __init__(self, dataset: ShardDataset) -> None:
        super().__init__()
        features, categories = (dataset.schema.fields[n] for n in ("features", "categories"))
        assert isinstance(features, Features)
        assert isinstance(categories, Categories)
        self.linear = torch.nn.Linear(len(features.columns), 1)
        self.embeddings = torch.nn.ModuleList(
            torch.nn.Embedding(size, 1) for size in categories.num_categories
        )

    def forward(self, features: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        embedded = [e(categories[:, i]) for i, e in enumerate(self.embeddings)]
        return torch.stack([self.linear(features), *embedded]).sum(dim=(0, 2))


@pytest.mark.slow
def test_a_model_learns_the_prices(packed: Path) -> None:
    torch.manual_seed(0)
    train, val = ShardDataset(packed).split([0.8, 0.2], seed=0)
    model = Prices(train)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    for features, categories, prices in (
        batch for _ in range(20) for batch in DataLoader(train, batch_size=256, shuffle=True)
    ):
        loss = torch.nn.functional.mse_loss(model(features, categories), prices)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    whole: Any = val.__getitems__(range(len(val)))
    features, categories, prices = whole.batch
    error = torch.nn.functional.mse_loss(model(features, categories), prices).item()
    assert error < 0.1 * prices.var().item()


def test_rows_that_a_device_gathers_are_the_same(packed: Path) -> None:
    dataset = RAMDataset(packed, device="cpu")
    order = np.random.default_rng(1).permutation(ROWS)[:100].tolist()

    found: Any = dataset.__getitems__(order)
    expected: Any = ShardDataset(packed).__getitems__(order)

    for values, others in zip(found.batch, expected.batch, strict=True):
        assert values.dtype == others.dtype
        assert torch.equal(values, others)


def test_a_batch_of_no_rows_has_its_shapes_and_types(packed: Path) -> None:
    empty: Any = ShardDataset(packed).__getitems__([])

    assert [tuple(values.shape) for values in empty.batch] == [(0, 2), (0, 2), (0,)]
    assert [v.dtype for v in empty.batch] == [torch.float32, torch.int64, torch.float32]
