"""One process of a training run under a framework; ``test_frameworks.py`` starts it through ``torchrun``.

Usage: ``framework_jobs.py FRAMEWORK DATASET OUT``. Each run is cut off in the middle of its second epoch,
and a new one goes on from the checkpoint. The numbers of all samples that the model was given lie in
``OUT/RANK.json``: per run, per step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from loaders import DataLoader, RAMDataset, ShardDataset, collate

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
        while loader.epoch < NUM_EPOCHS:
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
    odd = DataLoader(dataset.select(range(25)), BATCH_SIZE, as_dict=True)  # one row is padding
    gathered = [accelerator.gather_for_metrics(b["sample_id"]) for b in accelerator.prepare(odd)]
    result["gathered"] = torch.cat(gathered).tolist()
    accelerator.gradient_accumulation_steps = ACCUMULATED
    result["synced"] = []
    for _ in range(2):
        for step, batch in enumerate(loader):
            for _ in odd:
                break  # a look at other batches
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


# -- states at the ends of epochs -------------------------------------------------------------------


def small_loader(num_samples: int, num_workers: int = 1, **settings: Any) -> DataLoader:
    """Return a loader of two samples a batch; a rest is dropped."""
    dataset = RAMDataset.from_arrays(
        x=np.arange(num_samples), score=np.zeros(num_samples, np.float32)
    )
    return DataLoader(
        dataset, 2, shuffle=True, drop_last=True, num_workers=num_workers, **settings
    )


def run_lightning_ends(folder: str, out: Path) -> dict[str, Any]:
    """Resume from the checkpoint of every step, for one loader and several; return where it went wrong."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

    class Model(lightning.LightningModule):  # type: ignore[misc]  # seen as Any
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            parts = batch if isinstance(batch, list) else [batch]
            ids = [None if part is None else part["x"].tolist() for part in parts]
            self.seen.append([self.current_epoch, ids])
            return self.layer(parts[0]["score"][:, None]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-4)

    def train(mode: str, callbacks: list[Any], limit: Any, checkpoint: Path | None) -> list[Any]:
        model, long, short = Model(), small_loader(11, as_dict=True), small_loader(5, as_dict=True)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks, enable_checkpointing=bool(callbacks),
            limit_train_batches=limit,
        )  # fmt: skip
        loader = long if mode == "one" else CombinedLoader([long, short], mode)
        trainer.fit(model, loader, ckpt_path=checkpoint, weights_only=False)
        return model.seen

    wrong = []
    for mode, limit in [
        ("one", 1.0), ("one", 3), ("max_size_cycle", 1.0), ("max_size_cycle", 4), ("max_size", 1.0), ("min_size", 1.0),
    ]:  # fmt: skip
        folder_of = out / f"{mode}{limit}"
        steps = ModelCheckpoint(folder_of, "{step}", every_n_train_steps=1, save_top_k=-1)
        ends = ModelCheckpoint(
            folder_of, "{epoch}", save_on_train_epoch_end=True, save_top_k=-1, every_n_epochs=1
        )
        undisturbed = train(mode, [steps, ends], limit, None)
        for checkpoint in sorted(folder_of.iterdir()):
            step = torch.load(checkpoint, weights_only=False)["global_step"]
            if step < len(undisturbed):
                resumed = train(mode, [], limit, checkpoint)
                if resumed != undisturbed[step:]:
                    wrong.append([mode, limit, checkpoint.name, resumed, undisturbed[step:]])
    return {"wrong": wrong}


def run_accelerate_ends(folder: str, out: Path) -> dict[str, Any]:
    """Save each step and epoch and resume from each as accelerate's complete example does; return what went wrong."""
    from accelerate import Accelerator

    def train(num_workers: int, resume: str | None, folder_of: Path) -> list[Any]:
        accelerator = Accelerator(cpu=True)
        layer = torch.nn.Linear(1, 1)
        loader = accelerator.prepare(small_loader(11, num_workers, as_dict=True))
        accelerator.prepare(layer)
        first, to_skip, seen = 0, None, []
        if resume is not None:
            accelerator.load_state(str(folder_of / resume))
            kind, number = resume.split("_")
            first, to_skip = (
                (int(number) + 1, None) if kind == "epoch" else divmod(int(number), len(loader))
            )
        for epoch in range(first, 3):
            is_resumed = to_skip is not None and epoch == first
            batches = accelerator.skip_first_batches(loader, to_skip) if is_resumed else loader
            for step, batch in enumerate(batches, to_skip or 0 if is_resumed else 0):
                seen.append(batch["x"].tolist())
                if resume is None:
                    accelerator.save_state(
                        str(folder_of / f"step_{epoch * len(loader) + step + 1}")
                    )
            if resume is None:
                accelerator.save_state(str(folder_of / f"epoch_{epoch}"))
        accelerator.free_memory()
        return seen

    wrong = []
    for num_workers in (0, 2):
        folder_of = out / str(num_workers)
        undisturbed = train(num_workers, None, folder_of)
        for state in sorted(folder_of.iterdir()):
            kind, number = state.name.split("_")
            step = int(number) if kind == "step" else 5 * (int(number) + 1)
            resumed = train(num_workers, state.name, folder_of)
            if resumed != undisturbed[step:]:
                wrong.append([num_workers, state.name, resumed, undisturbed[step:]])
    return {"wrong": wrong}


def run_ignite_ends(folder: str, out: Path) -> dict[str, Any]:
    """Resume ignite's engines at every iteration, with the loader's state beside the engine's."""
    from ignite.engine import Engine, Events
    from ignite.engine.deterministic import DeterministicEngine

    def train(kind: Any, num_workers: int, states: Any) -> tuple[list[Any], dict[int, Any]]:
        loader, seen, taken = small_loader(11, num_workers), [], {}
        engine = kind(lambda _, batch: seen.append(batch.x.tolist()))
        if states is not None:
            engine.load_state_dict(states[0])
            loader.load_state_dict(states[1])
        engine.add_event_handler(
            Events.ITERATION_COMPLETED,
            lambda it: taken.update(
                {it.state.iteration: (dict(it.state_dict()), loader.state_dict())}
            ),
        )
        engine.run(loader, max_epochs=3)
        return seen, taken

    wrong = []
    for kind in (Engine, DeterministicEngine):
        for num_workers in (0, 2):
            undisturbed, taken = train(kind, num_workers, None)
            for step, states in taken.items():
                if step < len(undisturbed):
                    resumed, _ = train(kind, num_workers, states)
                    if resumed != undisturbed[step:]:
                        wrong.append([kind.__name__, num_workers, step, resumed])
    return {"wrong": wrong}


def run_transformers_ends(folder: str, out: Path) -> dict[str, Any]:
    """Save each step and resume from each, those at the ends of epochs too; return what went wrong."""
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[Any] = []

        def forward(self, score: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
            self.seen.append(x.tolist())
            return {"loss": self.layer(score[:, None]).square().mean()}

    def train(num_workers: int, folder_of: Path, resume: Path | None) -> list[Any]:
        class OurTrainer(Trainer):  # type: ignore[misc]  # seen as Any
            def get_train_dataloader(self) -> Any:
                return small_loader(11, num_workers, as_dict=True)

        model = Model()
        arguments = TrainingArguments(
            str(folder_of), num_train_epochs=3, use_cpu=True, report_to=[], disable_tqdm=True,
            logging_strategy="no", save_strategy="steps" if resume is None else "no", save_steps=1,
        )  # fmt: skip
        OurTrainer(model, arguments).train(resume_from_checkpoint=resume and str(resume))
        return model.seen

    wrong = []
    for num_workers in (0, 2):
        folder_of = out / f"trainer{num_workers}"
        undisturbed = train(num_workers, folder_of, None)
        for checkpoint in sorted(folder_of.iterdir()):
            step = int(checkpoint.name.rpartition("-")[2])
            if step < len(undisturbed):
                resumed = train(num_workers, folder_of, checkpoint)
                if resumed != undisturbed[step:]:
                    wrong.append([num_workers, checkpoint.name, resumed, undisturbed[step:]])
    return {"wrong": wrong}


RUN = {
    "transformers-ends": run_transformers_ends,
    "lightning-ends": run_lightning_ends,
    "accelerate-ends": run_accelerate_ends,
    "ignite-ends": run_ignite_ends,
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
