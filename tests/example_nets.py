"""Small models that stand for torchvision's and Hugging Face's in the examples, with their interfaces."""

import torch
from torch import Tensor, nn


def classifier(num_classes: int) -> nn.Sequential:
    """Return what `torchvision.models` gives by name: pictures to logits."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


class Detector(nn.Module):
    """What torchvision's detectors are in training: a dict of losses; boxes without area are refused."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        losses = []
        for image, target in zip(images, targets, strict=True):
            boxes, labels = target["boxes"], target["labels"]
            assert image.dtype == torch.float32
            assert 0 <= image.min() <= image.max() <= 1
            assert (boxes[:, 2:] > boxes[:, :2]).all()
            assert ((boxes >= 0) & (boxes <= image.shape[-1])).all()
            assert ((labels > 0) & (labels < self.num_classes)).all()
            guess = self.layer(image).mean((1, 2))
            losses.append(
                (guess - boxes / image.shape[-1]).square().mean()
                if len(boxes)
                else guess.sum() * 0
            )
        return {"boxes": torch.stack(losses).mean()}


class Chat(nn.Module):
    """Tokens, their positions and a mask (N, T, T) to logits: one layer of attention."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, 16)
        self.places = nn.Embedding(4096, 16)
        self.head = nn.Linear(16, vocab_size)

    def forward(self, tokens: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(places)
        seen = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        logits: Tensor = self.head(x + seen)
        return logits
