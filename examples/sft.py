"""Fine-tuning on conversations: packed documents, what the assistant does not say is masked, no padding to speak of.

packdata tokens chats.jsonl packed --tokenizer tokenizer.json --chat-template tokenizer_config.json
python examples/sft.py packed --model MODULE:FUNCTION
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from loaders import DataLoader, TokenWindows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed conversations")
    parser.add_argument(
        "--model",
        required=True,
        help="MODULE:FUNCTION of vocab_size; called with tokens, position_ids, mask",
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Whole conversations, side by side.
    windows = TokenWindows(args.data, length=args.length, by="document")
    loader = DataLoader(
        windows, args.batch_size, shuffle=True, drop_last=True, device=device, seed=0
    )
    module, _, function = args.model.partition(":")
    model = getattr(import_module(module), function)(windows.vocab_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    print(f"{len(windows)} windows, {windows.padding_share:.1%} padding")

    for epoch in range(args.epochs):
        for batch in loader:
            # Conversations do not see each other; the targets of prompts are -100.
            own = batch.document_ids[:, :, None] == batch.document_ids[:, None, :]
            logits = model(batch.tokens, batch.position_ids, own.tril()).flatten(0, 1)
            loss = cross_entropy(logits, batch.targets.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
