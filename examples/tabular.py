"""A regression on a table: numbers as one matrix, words as embeddings, the target's scale learned from training rows.

packdata tables train.csv packed/train --target price --standardize
packdata tables test.csv packed/test --like packed/train
python examples/tabular.py packed
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from loaders import DataLoader, RAMDataset
from loaders.schema import Categories, Features


class Net(nn.Module):
    """Embeddings of the words beside the numbers, then layers."""

    def __init__(self, num_numbers: int, num_categories: list[int], width: int = 128) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 8) for size in num_categories)
        inputs = num_numbers + 8 * len(num_categories)
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        embedded = [embedding(words[:, i]) for i, embedding in enumerate(self.embeddings)]
        found: Tensor = self.layers(torch.cat([numbers, *embedded], 1))
        return found[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of packed/train and packed/test")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = (RAMDataset(args.data / name) for name in ("train", "test"))
    *_, last = fields = train.schema.fields
    features, categories = fields["features"], fields["categories"]
    assert isinstance(features, Features)
    assert isinstance(categories, Categories)
    net = Net(len(features.columns), list(categories.num_categories)).to(device)
    target = train.column(last).astype("float32")
    middle, spread = float(target.mean()), float(target.std())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    loader = DataLoader(train, args.batch_size, shuffle=True, device=device, seed=0)
    test_loader = DataLoader(test, args.batch_size, pad=False, device=device)
    for epoch in range(args.epochs):
        for numbers, words, values in loader:
            loss = nn.functional.mse_loss(net(numbers, words), (values.float() - middle) / spread)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors = [
                (net(numbers, words) * spread + middle - values).abs()
                for numbers, words, values in test_loader
            ]
        error = torch.cat(errors).mean().item()
        print(f"epoch {epoch}: mean absolute error of the test {error:.1f}", flush=True)


if __name__ == "__main__":
    main()
