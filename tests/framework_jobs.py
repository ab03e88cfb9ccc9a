"""One process of a training run under a framework; ``test_frameworks.py`` starts it through ``torchrun``.

Usage: ``framework_jobs.py FRAMEWORK DATASET OUT``. Each run is cut off in the middle of its second epoch,
and a new one goes on from the checkpoint. The numbers of all samples that the model was given lie in
``OUT/RANK.json``: per run, per step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from loaders import DataLoader, ShardDataset, collate

NUM_EPOCHS, BATCH_SIZE, NUM_SAMPLES = 3, 3, 26
ACCUMULATED = 3  # batches whose gradients accelerate adds up
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
STOP_AFTER = NUM_SAMPLES // (BATCH_SIZE * WORLD_SIZE) + 2  # steps: in the second epoch


def train_loader(folder: str, **settings: Any) -> DataLoader:
    dataset = ShardDataset(folder, fields=["score", "sample_id"])
    return DataLoader(
        dataset, BATCH_SIZE, shuffle=True, seed=5, drop_last=True, num_workers=1, **settings
    )


def eval_loader(folder: str, **settings: Any) -> DataLoader:
    dataset = ShardDataset(folder, fields=["score", "sample_id"])
    return DataLoader(dataset, BATCH_SIZE, pad=False, num_workers=1, **settings)


class Seen:
    """The sample numbers of each step."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def add(self, sample_id: torch.Tensor) -> None:
        self.steps.append(sample_id.tolist())


# -- Lightning ------------------------------------------------------------------------------------


def run_lightning(folder: str, out: Path) -> dict[str, Any]:
    import lightning
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Model(lightning.LightningModule):  # type: ignore[misc]  # seen as Any
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.train_seen, self.eval_seen, self.predict_seen = Seen(), Seen(), Seen()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.train_seen.add(batch.sample_id)
            return self.layer(batch.score[:, None]).square().mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.eval_seen.add(batch.sample_id)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            self.predict_seen.add(batch.sample_id)
            return batch.sample_id

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-4)

    class Stop(Callback):  # type: ignore[misc]  # seen as Any
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = trainer.global_step >= STOP_AFTER

    def trainer(**settings: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
            max_epochs=NUM_EPOCHS, logger=False, enable_progress_bar=False,
            enable_model_summary=False, **settings,
        )  # fmt: skip

    first, second = Model(), Model()
    save = ModelCheckpoint(out, filename="last", every_n_train_steps=STOP_AFTER)
    stopped = trainer(callbacks=[save], max_steps=STOP_AFTER)
    stopped.fit(first, train_loader(folder))
    resumed = trainer(enable_checkpointing=False)
    resumed.fit(second, train_loader(folder), ckpt_path=out / "last.ckpt", weights_only=False)
    resumed.validate(second, eval_loader(folder), verbose=False)
    resumed.predict(second, eval_loader(folder))
    few = Model()
    trainer(enable_checkpointing=False, overfit_batches=2).fit(few, train_loader(folder))
    return {
        "overfit": few.train_seen.steps,
        "first": first.train_seen.steps,
        "second": second.train_seen.steps,
        "eval": second.eval_seen.steps,
        "predict": second.predict_seen.steps,
    }


# -- accelerate -----------------------------------------------------------------------------------


def run_accelerate(folder: str, out: Path) -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    seen = {name: Seen() for name in ("first", "second", "eval", "foreign")}

    def prepare() -> Any:
        layer = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(layer.parameters(), 1e-4)
        loader = train_loader(folder, device=accelerator.device)
        prepared = accelerator.prepare(loader, layer, optimizer)
        assert prepared[0] is loader
        return prepared

    def train(name: str, loader: Any, model: Any, optimizer: Any, max_steps: int) -> None:
        while loader.sampler.epoch < NUM_EPOCHS:
            for batch in loader:
                seen[name].add(batch.sample_id)
                accelerator.backward(model(batch.score[:, None]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                if len(seen[name].steps) == max_steps:
                    return

    loader, model, optimizer = prepare()
    train("first", loader, model, optimizer, STOP_AFTER)
    accelerator.save_state(str(out / "state"))
    accelerator.free_memory()
    loader, model, optimizer = prepare()
    accelerator.load_state(str(out / "state"))
    train("second", loader, model, optimizer, -1)
    for batch in accelerator.prepare(eval_loader(folder)):
        seen["eval"].add(batch.sample_id)
    dataset = ShardDataset(folder, fields=["sample_id"])
    foreign = DataLoader(dataset, 2, sampler=range(24), as_dict=True, num_workers=0)
    for batch in accelerator.prepare(foreign):  # not divided by rank: accelerate does that
        seen["foreign"].add(batch["sample_id"])
    result: dict[str, Any] = {name: part.steps for name, part in seen.items()}
    accelerator.gradient_accumulation_steps = ACCUMULATED
    result["synced"] = []
    for _ in range(2):
        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.score[:, None]).square().mean())
                if accelerator.sync_gradients:
                    result["synced"].append(step)
    return result


# -- transformers ---------------------------------------------------------------------------------


def run_transformers(folder: str, out: Path) -> dict[str, Any]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.train_seen, self.eval_seen = Seen(), Seen()

        def forward(self, score: torch.Tensor, sample_id: torch.Tensor) -> dict[str, Any]:
            (self.train_seen if self.training else self.eval_seen).add(sample_id)
            out = self.layer(score[:, None])
            return {"loss": out.square().mean(), "logits": out}

    class OurTrainer(Trainer):  # type: ignore[misc]  # seen as Any
        def get_train_dataloader(self) -> Any:
            return train_loader(folder, as_dict=True)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return eval_loader(folder, as_dict=True)

    class Stop(TrainerCallback):  # type: ignore[misc]  # seen as Any
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == STOP_AFTER:
                control.should_save = control.should_training_stop = True

    def ids_in_metrics(model: Any, args: Any) -> list[int]:
        """Return which samples the metrics are of, where ranks have tails of their own."""
        dataset = ShardDataset(folder, fields=["score", "sample_id"]).select(
            range(NUM_SAMPLES - 1)
        )
        ids: list[int] = []

        def note(prediction: Any) -> dict[str, float]:
            ids.extend(prediction.label_ids.tolist())
            return {}

        def as_dict(samples: Any) -> dict[str, Any]:
            return dict(collate(samples)._asdict())

        Trainer(
            model, args, eval_dataset=dataset, data_collator=as_dict, compute_metrics=note
        ).evaluate()
        return ids

    def arguments(**settings: Any) -> Any:
        return TrainingArguments(
            str(out / "trainer"), num_train_epochs=NUM_EPOCHS, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=1e-4,
            per_device_train_batch_size=BATCH_SIZE, per_device_eval_batch_size=BATCH_SIZE, **settings,
        )  # fmt: skip

    first, second = Model(), Model()
    OurTrainer(first, arguments(), callbacks=[Stop()]).train()
    resumed = OurTrainer(second, arguments())
    resumed.train(resume_from_checkpoint=True)
    resumed.evaluate()
    return {
        "first": first.train_seen.steps,
        "second": second.train_seen.steps,
        "eval": second.eval_seen.steps,
        "metrics": ids_in_metrics(Model(), arguments(label_names=["sample_id"])),
    }


RUN = {
    "lightning": run_lightning,
    "accelerate": run_accelerate,
    "transformers": run_transformers,
}

if __name__ == "__main__":
    name, folder, out = sys.argv[1:]
    result = RUN[name](folder, Path(out))
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()
