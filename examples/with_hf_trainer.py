"""transformers.Trainer on windows of tokens: a small subclass gives it our loader.

packdata tokens text packed --tokenizer tokenizer.json
python examples/with_hf_trainer.py packed --out run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

import loaders
from loaders import DataLoader, TokenWindows


class Trainer(transformers.Trainer):
    """Each window once an epoch, in our order; targets are shifted already."""

    def get_train_dataloader(self) -> DataLoader:
        size = self.args.per_device_train_batch_size
        return DataLoader(self.train_dataset, size, shuffle=True, drop_last=True, as_dict=True)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        outputs = model(input_ids=inputs["tokens"])
        loss = cross_entropy(outputs.logits.flatten(0, 1), inputs["targets"].flatten())
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="packed tokens, which are divided here")
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    windows = TokenWindows(args.data, length=args.length)
    train, val = windows.split([0.95, 0.05])
    config = transformers.GPT2Config(
        vocab_size=windows.vocab_size,
        n_positions=args.length,
        n_embd=args.width,
        n_layer=4,
        n_head=4,
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(args.out),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        eval_strategy="steps",
        eval_steps=max(1, args.steps // 2),
        save_steps=max(1, args.steps // 2),
        report_to=[],
        remove_unused_columns=False,
        label_names=["targets"],  # or evaluating would call the model without compute_loss
    )
    trainer = Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=train,
        eval_dataset=val,
        data_collator=lambda samples: loaders.collate(samples)._asdict(),
    )
    trainer.train(resume_from_checkpoint=any(args.out.glob("checkpoint-*")))


if __name__ == "__main__":
    main()
