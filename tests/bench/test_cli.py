import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaders import DataLoader, RAMDataset, ShardDataset, TokenWindows, augment
from loaders.bench.cli import main, recommended_line
from loaders.bench.measure import Config, group_size_of
from loaders.bench.targets import load
from loaders.errors import LoadersError
from loaders.gone import BENCH
from loaders.loading.tuning import cache_folder, read_workers
from loaders.system.limits import usable_cores
from packdata.tokens.plan import pack_tokens
from tests.bench.constructed import small_rows
from tests.packdata.packing import pack_samples
from tests.refusals import At

MAX_PLACES = 64  # bytes of a sample that say where its records begin and end
QUICK = ["--seconds", "0.1", "--repeats", "1"]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return pack_samples(tmp_path / "packed", 12)


@pytest.fixture(autouse=True)
def few_samples_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.bench.sweep._FEW_SAMPLES", 0)


@pytest.mark.slow
def test_nothing_is_recommended_of_too_few_samples_to_measure(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even with --keep: the start of the workers would be most of what is seen."""
    monkeypatch.setattr("loaders.bench.sweep._FEW_SAMPLES", 1000)
    monkeypatch.setattr(
        "loaders.bench.sweep._SHORT_EPOCH_S", 100.0
    )  # of 12 photos on a busy machine

    assert main(["recommend", str(packed), *QUICK, "--size", "32", "--keep"]) == 1
    done = capsys.readouterr()
    assert main([str(packed), *QUICK, "--size", "32", "--workers", "0", "--no-verdict"]) == 0

    assert done.out == ""
    assert "12 samples are too few to measure" in done.err
    assert not cache_folder().exists()
    assert "note: 12 samples are too few to measure" in capsys.readouterr().out


@pytest.mark.slow
def test_the_word_sweep_may_be_left_out(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command: a table with the chosen line marked, a verdict, the stages, what to change."""
    assert main([str(packed), *QUICK, "--size", "32"]) == 0

    done = capsys.readouterr()
    assert "* chosen: " in done.out
    assert "\nverdict: " in done.out
    assert done.out.splitlines()[-1].startswith("Do: ")
    _, _, stages = done.out.partition("stage  ")
    assert [line.split()[0] for line in stages.splitlines()[1:3]] == ["read", "decode"]
    assert "\nlimits with num_workers=" in done.out
    assert done.err.startswith(f"{packed}: 12 samples, random crops of 32 x 32")


def test_json_has_every_figure_and_repeat_and_the_verdict(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--workers", "0", "1", "--size", "32", "--json"]

    assert main(["sweep", str(packed), "--seconds", "0.1", *options]) == 0

    done = capsys.readouterr()
    found = json.loads(done.out)
    assert set(found) == {
        "dataset", "notes", "conditions", "results", "chosen",
        "verdict", "stages", "facts", "step_samples_per_s", "tokens_per_sample",
    }  # fmt: skip
    assert [result["num_workers"] for result in found["results"]] == [0, 1]
    assert all(len(result["samples_per_s_repeats"]) == 3 for result in found["results"])
    assert found["chosen"] in [{k: r[k] for k in found["chosen"]} for r in found["results"]]
    assert set(found["verdict"]) == {"bound", "sentence", "advice", "limits", "change"}
    assert "cpu" in found["verdict"]["limits"]
    assert list(found["stages"])[:2] == ["read", "decode"]
    assert found["facts"]["rate"] == max(
        r["samples_per_s"]
        for r in found["results"]
        if r["num_workers"] == found["chosen"]["num_workers"]
    )
    assert "cores_usable" in found["conditions"]
    assert "into memory" not in done.err


@pytest.mark.slow
def test_what_is_given_is_all_that_is_measured(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--workers", "1", "--batch-size", "3", "--backend", "process", "--prefetch", "3"]
    limits = ["--seconds", "0.5", "--repeats", "2", "--no-verdict"]

    assert main([str(packed), *settings, *limits, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    config = {"num_workers": 1, "batch_size": 3, "backend": "process", "prefetch": 3}
    assert "verdict" not in found
    assert found["chosen"] == config
    assert [{k: result[k] for k in config} for result in found["results"]] == [config]
    assert len(found["results"][0]["samples_per_s_repeats"]) == 2


@pytest.mark.slow
def test_what_the_sweep_shows_comes_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the settings that a loader has by itself: none of its own for any Dataset."""
    options = ["--workers", "0", "4", "--batch-size", "4", "--seconds", "1", "--repeats", "1"]

    assert main(["tests.bench.constructed:Sleeps", *options]) == 0

    out = capsys.readouterr().out
    said = "Do: num_workers=4 instead of num_workers=0: "
    assert said in out
    assert float(out.partition(said)[2].split("x")[0]) > 1.2


def test_a_training_step_is_run_on_real_batches(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "tests.bench.constructed:slow_step_of_batch"
    options = ["--workers", "1", "--batch-size", "4", "--size", "32", "--step", step]

    assert main([str(packed), *options, "--seconds", "0.6", "--repeats", "1"]) == 0

    done = capsys.readouterr()
    assert "The training step is the limit" in done.out
    assert "  step  " in done.out
    assert "with your step:" in done.out
    assert "into memory" not in done.err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--step", "train"], "not of the form module:name"),
        (["--step", "tests.bench.constructed:__doc__"], "a str, not a function"),
        (["--step", "tests.bench.constructed:no_step"], "has no attribute 'no_step'"),
        (["--device", "gpu"], "device must be one that torch knows"),
        (["--seconds", "-1"], "a number from 0.01, got '-1'"),
        (["--seconds", "inf"], "a number from 0.01, got 'inf'"),
        (["--repeats", "0"], "a whole number from 1, got '0'"),
        (["--workers", "-1"], "a whole number from 0, got '-1'"),
        (["--size", "-5"], "a whole number from 0, got '-5'"),
        (["--size", "1e3"], "a whole number from 0, got '1e3'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_fail_in_the_end_fails_before_anything_is_measured(
    packed: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    words: str,
) -> None:
    monkeypatch.setattr("loaders.bench.cli.run_sweep", None)

    try:
        code: Any = main([str(packed), *option])
    except SystemExit as ended:  # of argparse
        code = ended.code

    assert code in (1, 2)
    assert words in capsys.readouterr().err


def test_recommend_has_a_line_that_makes_the_loader_and_what_auto_then_uses(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--size", "0", "--batch-size", "3", "--keep", "--json"]

    assert main(["recommend", str(packed), *QUICK, *options]) == 0

    found = json.loads(capsys.readouterr().out)
    dataset = ShardDataset(packed)
    made: dict[str, Any] = {"DataLoader": DataLoader, "dataset": dataset}
    loader = eval(found["line"], made)
    assert isinstance(loader, DataLoader)
    assert loader.batch_size == 3
    assert Path(found["kept_in"]).parent == cache_folder()
    assert {result["batch_size"] for result in found["results"]} == {3}
    assert read_workers(dataset, usable_cores()) == loader.num_workers
    assert DataLoader(dataset).num_workers == loader.num_workers


@pytest.mark.slow
def test_of_tokens_windows_are_measured_and_tokens_per_second_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.save(tmp_path / "ids.npy", np.zeros(20_000, np.uint16))
    pack_tokens(tmp_path / "ids.npy", tmp_path / "tokens")

    assert main([str(tmp_path / "tokens"), *QUICK, "--workers", "0"]) == 0
    swept = capsys.readouterr()
    assert main(["recommend", str(tmp_path / "tokens"), *QUICK, "--batch-size", "4"]) == 0
    recommended = capsys.readouterr()

    _, header, row, *_ = swept.out.splitlines()
    assert header.split()[-1] == "tokens/s"
    assert float(row.split()[-1].replace(",", "")) > 1000
    assert "windows of 1,024 tokens" in swept.err
    assert "num_workers=8" not in swept.out
    assert "image" not in swept.out
    line = "DataLoader(TokenWindows(dataset, length=1024), batch_size=4, "
    assert recommended.out.startswith(line)
    assert " tokens/s\n" in recommended.err


@pytest.mark.slow
@pytest.mark.parametrize(("available", "is_kept"), [(1.0, True), (0.3, False)])
def test_what_is_recommended_is_kept_on_a_quiet_machine_only(
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    available: float,
    is_kept: bool,
) -> None:
    monkeypatch.setattr("loaders.bench.stages.available_share", lambda *_: available)

    assert main(["recommend", str(packed), *QUICK, "--size", "0"]) == 0

    line, said = capsys.readouterr()
    assert line.startswith("DataLoader(dataset, batch_size=")
    assert cache_folder().exists() is is_kept
    assert ('num_workers="auto" now takes' in said) is is_kept
    assert ('not kept for num_workers="auto": the machine is busy' in said) is not is_kept


@pytest.mark.parametrize(
    ("size", "ops"),
    [
        ("0", "[]"),
        ("32", "[augment.RandomResizedCrop(32), augment.RandomHorizontalFlip()]"),
    ],
)
def test_the_dataset_that_a_count_is_kept_for_is_told_as_it_is_made(
    packed: Path, judged: None, capsys: pytest.CaptureFixture[str], size: str, ops: str
) -> None:
    """Of other fields or another augmentation samples cost something else."""
    assert main(["recommend", str(packed), *QUICK, "--size", size, "--keep"]) == 0

    said = capsys.readouterr().err.splitlines()[-1]
    begin, _, rest = said.partition(" for ")
    made, _, end = rest.partition(", and for no other settings of it (")
    dataset = eval(made, {"ShardDataset": ShardDataset, "augment": augment})
    num_workers = read_workers(dataset, usable_cores())
    assert begin.startswith(f'num_workers="auto" now takes {num_workers} on {usable_cores()} core')
    assert dataset.augment == tuple(eval(ops))
    assert end.startswith(f"{cache_folder()}/")
    assert read_workers(dataset.replace(augment=[augment.CenterCrop(8)]), usable_cores()) is None


def test_the_windows_that_a_count_is_kept_for_are_told(
    tmp_path: Path,
    judged: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.save(tmp_path / "ids.npy", np.zeros(20_000, np.uint16))
    pack_tokens(tmp_path / "ids.npy", tmp_path / "tokens")
    folder = str(tmp_path / "tokens")

    assert main(["recommend", folder, *QUICK, "--batch-size", "4", "--keep"]) == 0

    assert f" for TokenWindows({folder!r}, length=1024), and" in capsys.readouterr().err
    windows = TokenWindows(ShardDataset(folder), length=1024)
    assert read_workers(windows, usable_cores()) is not None


def test_an_object_that_a_count_is_kept_for_is_named(
    packed: Path, judged: None, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "tests.bench.constructed:small_rows"

    assert main(["recommend", name, *QUICK, "--batch-size", "64", "--keep"]) == 0

    assert f" for {name} as it is, and for no other settings" in capsys.readouterr().err


def test_a_dataset_without_a_fingerprint_has_nothing_to_be_kept_by(
    judged: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--batch-size", "64", "--keep"]

    assert main(["recommend", "tests.bench.constructed:transformed", *QUICK, *options]) == 0

    assert (
        'not kept for num_workers="auto": the dataset has no fingerprint'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("config", "device", "line"),
    [
        (Config(0, 4, "process"), None, "batch_size=4, shuffle=True, num_workers=0"),
        (Config(2, 4, "process", 3), torch.device("cpu"),
         "batch_size=4, shuffle=True, num_workers=2, prefetch_factor=3, persistent_workers=True"),
        (Config(2, 4, "subprocess"), torch.device("cuda:1"),
         "batch_size=4, shuffle=True, num_workers=2, backend='subprocess', persistent_workers=True, "
         "device='cuda:1'"),
        (Config(2, 4, "thread"), None, "batch_size=4, shuffle=True, num_workers=2, backend='thread'"),
    ],
)  # fmt: skip
def test_the_recommended_line_says_what_is_not_the_default(
    config: Config, device: torch.device | None, line: str
) -> None:
    """For a Dataset that is not ours, which processes serve by default."""
    found = recommended_line(load("tests.bench.constructed:instant"), config, device)

    assert found == f"DataLoader(dataset, {line})"


def test_a_stream_is_not_to_be_shuffled() -> None:
    target = load("tests.bench.constructed:Stream")

    line = recommended_line(target, Config(0, 4, "process"))

    loader = eval(line, {"DataLoader": DataLoader, "dataset": target.dataset})
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]


def test_plan_prints_what_is_needed(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(packed), "--size", "32", "--batch-size", "4", "--workers", "4"]

    assert main([*arguments, "--ranks", "2", "--ram", "encoded", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["plan"]["cache_copies"] == 2
    in_ram = RAMDataset(packed, progress=False).nbytes
    assert in_ram <= figures["plan"]["cache_bytes"] <= in_ram + 12 * MAX_PLACES
    assert figures["plan"]["batch_bytes"] == 4 * (3 * 32 * 32 + 8)
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "one batch" in out
    assert "0 copies" not in out
    assert out.splitlines()[-1].startswith("fits: ")


def test_a_folder_whose_name_is_no_text_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are no UTF-8: output has no letters for them."""
    folder = pack_samples(tmp_path / os.fsdecode(b"\xff"), 6)

    assert main(["plan", str(folder)]) == 0

    assert f"{tmp_path}/\\udcff," in capsys.readouterr().out  # a long line is folded behind it


def test_plan_says_that_something_does_not_fit(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.bench.cli.available_memory", lambda: 1 << 20)

    assert main(["plan", str(packed), "--size", "224", "--batch-size", "8"]) == 0

    verdict, remedy = capsys.readouterr().out.splitlines()[-2:]
    assert verdict.startswith("does not fit: ")
    assert remedy.startswith("Do: ")


@pytest.mark.parametrize(("ranks", "workers"), [(1, 12), (8, 1), (5, 2), (99, 1)])
def test_plan_gives_each_rank_its_share_of_the_cores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ranks: int, workers: int
) -> None:
    """As num_workers="auto" does under torchrun."""
    monkeypatch.setattr("loaders.bench.cli.usable_cores", lambda: 12)

    options = ["--ranks", str(ranks), "--json"]
    assert main(["plan", "tests.bench.constructed:small_rows", *options]) == 0

    assert json.loads(capsys.readouterr().out)["config"]["num_workers"] == workers


def test_plan_counts_what_each_option_adds(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--batch-size", "1", "--workers", "2", "--backend", "process", "--prefetch", "3"]
    node = ["--ranks", "3", "--ram", "decoded", "--shared", "--pinned"]

    assert main(["plan", str(packed), "--size", "32", *config, *node, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    plan, batch = found["plan"], 1 * (3 * 32 * 32 + 8)
    assert list(found["config"].values()) == [2, 1, "process", 3]
    assert (plan["batches"], plan["slots_bytes"]) == (8, 8 * batch)  # 3 of each worker, and 2
    assert plan["pinned_bytes"] == 7 * batch
    in_ram = RAMDataset(packed, decode=True, progress=False).nbytes  # whole images, not the crops
    assert in_ram <= plan["cache_bytes"] <= in_ram + 12 * MAX_PLACES
    rank = plan["slots_bytes"] + plan["pinned_bytes"] + plan["workers_bytes"]
    assert (plan["cache_copies"], plan["rank_bytes"]) == (1, rank)
    assert plan["node_bytes"] == 3 * rank + plan["cache_bytes"]


def test_plan_shares_only_what_is_in_memory(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, check=At(code=2)):
        main(["plan", str(packed), "--shared"])

    assert "--shared goes with --ram" in capsys.readouterr().err


def test_plan_knows_groups_of_small_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--workers", "2", "--batch-size", "16", "--json"]

    assert main(["plan", "tests.bench.constructed:small_rows", *options]) == 0
    small = json.loads(capsys.readouterr().out)
    assert main(["plan", "tests.bench.constructed:Stream", *options]) == 0
    stream = json.loads(capsys.readouterr().out)

    size = group_size_of(small_rows, Config(2, 16, "thread"))
    assert size > 1
    assert small["plan"]["batches"] == 4 * size + 2
    assert list(stream) == ["config", "plan", "available_bytes"]
    assert stream["plan"]["batch_bytes"] == 16 * 4


def test_doctor_prints_findings(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the folder that is named, or of this one; a check that fails costs its own line only."""
    from loaders.bench import doctor

    monkeypatch.setattr(doctor, "CHECKS", (doctor.cores, doctor.read_rate))

    assert main(["doctor", str(packed), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "cores_usable" in found["conditions"]
    assert [list(f) for f in found["findings"]] == [
        ["name", "level", "found", "cost", "remedy"]
    ] * 2
    assert "name a folder" in found["findings"][1]["remedy"]
    assert main(["doctor"]) == 0
    assert "cores: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "'nowhere' is no folder"),
        (["tests.bench.constructed:Empty"], "'tests.bench.constructed:Empty' has no samples"),
        (["plan", "tests.bench.constructed:Empty"], "'tests.bench.constructed:Empty' has no samples"),
        (["plan", "tests.bench.constructed:instant", "--ram", "decoded"], "--ram: "),
        (["doctor", "nowhere"], "there is no 'nowhere' to look at"),
        (["tests.bench.constructed:Fails", "--workers", "0", "--batch-size", "4", *QUICK],
         "every setting failed in some run: OSError: the disk is gone"),
        (["recommend", "tests.bench.constructed:failing", "--batch-size", "4", *QUICK],
         "every setting failed in some run: "),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_an_error_in_a_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 1

    done = capsys.readouterr()
    assert done.err.splitlines()[-1].startswith(f"loaders.bench: {said}")
    assert done.out == ""


def test_an_interrupt_ends_it_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests.bench.constructed:Interrupts"]) == 130
    assert capsys.readouterr().err.endswith("loaders.bench: interrupted\n")


@pytest.mark.parametrize("command", ["sweep", "recommend"])
def test_most_of_the_time_goes_to_the_sweep_and_by_default_all_of_it_is_less_than_a_minute(
    packed: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The rest to stages alone."""
    seen: list[dict[str, Any]] = []

    def spy(target: Any, configs: Any, **options: Any) -> Any:
        seen.append(options)
        raise LoadersError("enough")

    monkeypatch.setattr("loaders.bench.cli.run_sweep", spy)
    main([command, str(packed)])
    main([command, str(packed), "--seconds", "12", "--repeats", "5"])

    assert seen[0]["seconds"] < 30
    assert seen[1] == {"seconds": pytest.approx(7.8), "repeats": 5}


@pytest.mark.parametrize("words", BENCH)
def test_what_was_removed_names_what_to_use_instead(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words.split(), "packed"])

    assert caught.value.code == 2
    assert BENCH[words] in capsys.readouterr().err
