"""The same network on the same data, through this package and through a plain pipeline, learns the same."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader as PlainLoader
from torch.utils.data import TensorDataset

from loaders import DataLoader, Normalize, RAMDataset, ShardDataset, TokenWindows, augment
from packdata.cli import main

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data"
SEED = 0


def train(
    net: Callable[[], nn.Module],
    epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    num_epochs: int,
) -> nn.Module:
    """Return a network, trained from the same weights whatever the batches are."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(num_epochs):
            for inputs, targets in epoch():
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
                optimizer.step()
    return model.eval()


# -- pictures, as CIFAR's ---------------------------------------------------------------------------


def pictures(num: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return pieces of photos, (12 * num, 32, 32, 3), and of which photo each is."""
    rng, pieces = np.random.default_rng(seed), []
    for path in sorted(DATA.glob("photos/*/*.jpg")):
        with Image.open(path) as photo:
            for _ in range(num):
                x, y = (int(rng.integers(side - 160)) for side in photo.size)
                pieces.append(np.asarray(photo.crop((x, y, x + 160, y + 160)).resize((32, 32))))
    return np.stack(pieces), np.repeat(np.arange(12), num)


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 12),
    )  # fmt: skip


def by_hand(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Pad by 4, crop to 32 and flip, each picture for itself."""
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    crops = []
    for picture in padded:
        x, y = rng.integers(9, size=2)
        crop = picture[:, y : y + 32, x : x + 32]
        crops.append(crop.flip(2) if rng.random() < 0.5 else crop)
    return torch.stack(crops)


def test_pictures_teach_the_same_as_crops_by_hand() -> None:
    images, labels = pictures(60, seed=1)
    new_images, new_labels = pictures(20, seed=2)
    normalize = Normalize([120.0] * 3, [60.0] * 3)
    ops = [augment.RandomCrop(32, padding=4), augment.RandomHorizontalFlip()]
    ours = DataLoader(
        RAMDataset.from_arrays(image=images, label=labels, augment=ops), 64, shuffle=True, seed=1
    )
    tensors = TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))
    rng, generator = np.random.default_rng(3), torch.Generator().manual_seed(3)
    plain = PlainLoader(tensors, 64, shuffle=True, generator=generator)

    def right(epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> float:
        model = train(small_net, epoch, cross_entropy, num_epochs=10)
        with torch.no_grad():
            pixels = normalize(torch.from_numpy(new_images).permute(0, 3, 1, 2))
            return float((model(pixels).argmax(1) == torch.from_numpy(new_labels)).double().mean())

    got = right(lambda: ((normalize(x), y) for x, y in ours))
    beside = right(lambda: ((normalize(by_hand(x, rng)), y) for x, y in plain))

    assert min(got, beside) > 0.6  # of 12 photos
    assert got > beside - 0.08


# -- tokens ---------------------------------------------------------------------------------------


class Letters(nn.Module):
    """What follows, from three letters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(256, 64) for _ in range(3))
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(64, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        before = [nn.functional.pad(tokens, (n, 0))[:, :length] for n in range(3)]
        seen = [embed(part) for embed, part in zip(self.embed, before, strict=True)]
        logits: Tensor = self.out(torch.stack(seen).sum(0))
        return logits


def test_tokens_teach_the_same_as_random_positions(tmp_path: Path) -> None:
    """nanoGPT's get_batch draws positions; here each window comes once an epoch."""
    text = (DATA / "real/shakespeare.txt").read_bytes()
    for name, part in (("train", text[:100_000]), ("val", text[100_000:])):
        (tmp_path / f"{name}.txt").write_bytes(part)
        assert main(["tokens", str(tmp_path / f"{name}.txt"), str(tmp_path / name)]) == 0
    length, batch = 64, 16
    loader = DataLoader(
        TokenWindows(tmp_path / "train", length=length), batch, shuffle=True, drop_last=True
    )
    ids = torch.from_numpy(np.frombuffer(text[:100_000], np.uint8).astype(np.int64))
    rng = np.random.default_rng(4)

    def get_batch() -> tuple[Tensor, Tensor]:
        starts = rng.integers(len(ids) - length - 1, size=batch)
        x, y = (torch.stack([ids[s + n : s + n + length] for s in starts]) for n in (0, 1))
        return x, y

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    def validation(epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> float:
        model = train(Letters, epoch, loss_of, num_epochs=6)
        windows = DataLoader(TokenWindows(tmp_path / "val", length=length), 64, pad=False)
        with torch.no_grad():
            return float(np.mean([loss_of(model(x), y).item() for x, y in windows]))

    got = validation(lambda: ((x, y) for x, y in loader))
    beside = validation(lambda: (get_batch() for _ in range(len(loader))))

    assert max(got, beside) < 2.5  # nats; 3.3 by how often each letter comes
    assert got < beside + 0.05


# -- tables ---------------------------------------------------------------------------------------


class Prices(nn.Module):
    """Six standardized numbers and three categories, one-hot, to the logarithm of a price."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.Sequential(
            nn.Linear(6 + sum(sizes), 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )

    def forward(self, rows: Tensor) -> Tensor:
        words = [
            nn.functional.one_hot(rows[:, 6 + i].long(), size).float()
            for i, size in enumerate(self.sizes)
        ]
        out: Tensor = self.layers(torch.cat([rows[:, :6], *words], 1))
        return out + 8


def test_diamonds_teach_the_same_as_pandas(tmp_path: Path) -> None:
    whole = pd.read_csv(DATA / "real/diamonds.csv")
    parts = {"test": whole[::5], "train": whole.drop(whole.index[::5])}
    for name, frame in parts.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    folders = {name: str(tmp_path / name) for name in parts}
    train_csv, test_csv = (str(tmp_path / f"{name}.csv") for name in ("train", "test"))
    packing = ["tables", train_csv, folders["train"], "--target", "price", "--standardize"]
    assert main(packing) == 0
    assert main(["tables", test_csv, folders["test"], "--like", folders["train"]]) == 0

    def as_rows(batch: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([batch.features, batch.categories.float()], 1), batch.price.log()

    packed = ShardDataset(folders["train"])
    sizes = list(packed.schema.fields["categories"].num_categories)  # type: ignore[attr-defined]
    loader = DataLoader(packed, 64, shuffle=True, seed=1)

    def by_pandas(frame: pd.DataFrame) -> TensorDataset:
        words = frame.select_dtypes(exclude="number")
        numbers = frame.select_dtypes("number").drop(columns="price")
        like = parts["train"][numbers.columns]
        scaled = (numbers - like.mean()) / like.std(ddof=0)
        codes = [
            pd.Categorical(frame[c], sorted(parts["train"][c].unique())).codes + 1 for c in words
        ]
        rows = np.column_stack([scaled, *codes]).astype("float32")
        return TensorDataset(
            torch.from_numpy(rows), torch.tensor(frame.price.values).log().float()
        )

    generator = torch.Generator().manual_seed(5)
    plain = PlainLoader(by_pandas(parts["train"]), 64, shuffle=True, generator=generator)

    def error(
        epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]], test: tuple[Tensor, Tensor]
    ) -> float:
        model = train(lambda: Prices(sizes), epoch, mse_loss, num_epochs=25)
        with torch.no_grad():
            return float((model(test[0]) - test[1]).square().mean().sqrt())

    whole_test = next(iter(DataLoader(ShardDataset(folders["test"]), len(parts["test"]))))
    got = error(lambda: map(as_rows, loader), as_rows(whole_test))
    tensors = by_pandas(parts["test"]).tensors
    beside = error(lambda: ((x, y) for x, y in plain), (tensors[0], tensors[1]))

    assert max(got, beside) < 0.3  # of the logarithm; its spread is 1
    assert got < 1.15 * beside
