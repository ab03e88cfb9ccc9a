"""Sources come first and the target last; a target that is a source, lies in one or holds one is refused."""

import os
from pathlib import Path

import pytest

from loaders.errors import PackError
from packdata.packed import derive
from tests.packdata.packing import pack_samples
from tests.packdata.reading import PackedReader
from tests.packdata.test_commands import SMALL, run, samples_of

SOURCE_COMMANDS = {  # of each, how it is given a source and a target
    "copy": ["copy", "SRC", "DST", "--overwrite"],
    "split": ["split", "SRC", "DST/..", "--parts", "NAME=0.5", "--overwrite"],
    "merge": ["merge", "other", "SRC", "DST", "--overwrite"],
    "merge first": ["merge", "SRC", "other", "DST", "--overwrite"],
    "extend": ["extend", "other", "SRC", "DST"],
    "tables": ["tables", "SRC/shard-00000.parquet", "DST", "--overwrite"],
    "tables by pattern": ["tables", "SRC/*.parquet", "DST", "--overwrite"],
    "images": ["images", "SRC", "DST", "--overwrite"],
}
TARGETS = ["src", "./src", "link", "src/inner", "."]


def targets_of(command: str) -> list[str]:
    if command.startswith("tables"):  # nothing is inside a file
        return [each for each in TARGETS if each != "src/inner"]
    return TARGETS[:-1] if command == "split" else TARGETS  # whose parts are made in a folder


@pytest.mark.parametrize("command", SOURCE_COMMANDS)
def test_a_target_that_is_or_holds_a_source_or_lies_in_one_is_refused(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever name, and though --overwrite is given: it would be lost."""
    source = pack_samples(tmp_path / "src", 6, fields=SMALL, format="parquet")
    derive.merge(tmp_path / "other", [pack_samples(tmp_path / "o", 2, first=20, fields=SMALL)])
    monkeypatch.chdir(tmp_path)
    os.symlink("src", "link")
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}

    for target in targets_of(command):
        name = Path(target).name
        words = {"SRC": "src", "DST/..": str(Path(target).parent), "NAME=0.5": f"{name}=0.5"}
        argv = [
            words.get(w, w.replace("SRC", "src").replace("DST", target))
            for w in SOURCE_COMMANDS[command]
        ]

        with pytest.raises(PackError) as caught:
            run(*argv)

        assert "--overwrite" not in str(caught.value), target
        assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before, target
        assert len(PackedReader(tmp_path / "other")) == 2, target


def test_merge_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError) as caught:
        derive.merge(tmp_path / "all", [])

    assert caught.value.path == tmp_path / "all"
    assert not (tmp_path / "all").exists()


def test_merge_replaces_what_merge_has_made_alone(tmp_path: Path) -> None:
    """With a word too few, or in the old order, the last source would be the target."""
    parts = [pack_samples(tmp_path / f"p{i}", 3, first=3 * i, fields=SMALL) for i in range(3)]
    before = samples_of(parts[2])

    for options in ([], ["--overwrite"]):
        with pytest.raises(PackError) as caught:
            run("merge", *parts, *options)
        assert "--overwrite" not in caught.value.hint
        assert caught.value.path == parts[2]

    assert samples_of(parts[2]) == before
