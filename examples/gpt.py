"""nanoGPT's loop on a packed stream of tokens: each window once an epoch, accumulation, exact resume.

packdata tokens openwebtext.jsonl packed --tokenizer tokenizer.json
python examples/gpt.py packed --checkpoint gpt.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from loaders import DataLoader, TokenWindows


class GPT(nn.Module):
    """A small decoder; put yours here."""

    mask: Tensor

    def __init__(self, vocab_size: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False
        )

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        logits: Tensor = self.head(self.layers(x, self.mask[:length, :length], is_causal=True))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed tokens, which are divided here")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--checkpoint", type=Path, default=Path("gpt.pt"))
    parser.add_argument("--eval-every", type=int, default=2000)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    windows = TokenWindows(args.data, length=args.length)
    train, val = windows.split([0.99, 0.01])  # spans that share no token
    loader = DataLoader(
        train, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0
    )
    model = GPT(windows.vocab_size, args.length, args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    first = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first = state["step"]

    batches = loader.forever()
    for step in range(first + 1, args.steps + 1):
        for _ in range(args.accumulate):
            tokens, targets = next(batches)  # int64 (N, length); a target is the next token
            with torch.autocast(device, torch.bfloat16):
                loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (loss / args.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.eval_every == 0 or step == args.steps:
            val_loss = evaluate(model, val, args.batch_size, device)
            print(f"step {step}: validation loss {val_loss:.3f}", flush=True)
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "step": step,
            }
            torch.save(state, args.checkpoint)


@torch.no_grad()
def evaluate(model: nn.Module, val: TokenWindows, batch_size: int, device: str) -> float:
    """Return the loss over each token of the validation span, once."""
    model.eval()
    total = sum(
        cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum").item()
        for tokens, targets in DataLoader(val, batch_size, pad=False, device=device)
    )
    model.train()
    return total / (len(val) * val.length)


if __name__ == "__main__":
    main()
