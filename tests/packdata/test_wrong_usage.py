"""Wrong use of the commands: one clear error that names what was found, the right status, and nothing written."""

import shlex
from pathlib import Path

import pytest

from packdata.cli import main
from packdata.gone import GONE
from tests.packdata.command_sources import make_sources
from tests.packdata.packing import pack_samples
from tests.packdata.reading import PackedReader

USAGE = [
    ("images '' {dst}", "argument SRC: the path is empty: write . for the folder you are in"),
    ("images photos ''", "argument DST: the path is empty"),
    ("info ''", "argument DATASET: the path is empty"),
    ("copy packed ''", "argument DST: the path is empty"),
    ("images photos {dst} --masks ''", "argument --masks: the path is empty"),
    ("images photos {dst} --fit cover", "pass sizes=, too (option: --size)"),
    ("images photos {dst} --quality 50", "quality 50 is for codec="),
    ("images photos {dst} --size 8 --fit cover --codec raw --quality 50", "quality 50 is for codec="),
    ("images photos {dst} --codec png --compression lz4", "belongs to fields of codec 'dct', not 'png'"),
    ("images photos {dst} --engine ray --part 0/2", "--engine ray takes --parts and --address, and no --part"),
    ("images photos {dst} --parts 2", "--engine ray takes --parts and --address, and no --part"),
    ("images photos {dst} --part 3", "a part is I/N"),
    ("images photos {dst} --shuffle x", "argument --shuffle: takes a whole number or none"),
    ("images photos {dst} --box-labels x", "box_labels go with boxes=, flip_pairs with keypoints="),
    ("tokens a.txt {dst} --eod x", "eod must be an id, 'auto' or 'none'"),
    ("tokens ids.npy {dst} --vocab-size 5000000000", "--vocab-size: must be a whole number from 1"),
    ("tokens a.txt {dst} --documents ''", "documents must be 'file', 'line' or a separator"),
    ("tokens rows.jsonl {dst} --messages-column messages", "messages_column needs a chat_template"),
    ("tokens rows.jsonl {dst} --seed 1", "seed needs a val_share"),
    ("tables t.csv {dst} --features 'a,\"b'", "argument --features: unexpected end of data, in"),
    ("tokens ids.npy {dst} --documents line", "documents is for plain text, not npy"),
    ("tokens a.txt {dst} --text-column body", "not text (option: --text-column)"),
    ("tokens a.txt {dst} --bin-dtype uint32", "not text (option: --bin-dtype)"),
    ("tokens a.txt {dst} --tokenizer ''", "argument --tokenizer: the path is empty"),
    ("tokens a.txt {dst} --vocab-size 300", "vocab_size is for ids"),
    ("tokens a.txt {dst} --train-bpe 300 --tokenizer bytes", "leave out tokenizer or train_bpe"),
    ("tables t.csv {dst} --delimiter ';;'", "must be one ASCII character other than a quote or line end, got ';;'"),
    ("tables t.csv {dst} --delimiter ''", "got ''"),
    ("tables t.csv {dst} --delimiter '\"'", "other than a quote"),
    ("tables t.csv {dst} --drop x,y,zip,kind", "no column is left to pack"),
    ("tables t.csv {dst} --delimiter §", "one ASCII character"),
    ("tables t.csv {dst} --features ','", "argument --features: takes names separated by commas, got ','"),
    ("tables t.csv {dst} --like train --dtype float64", "dtype: the dataset of like= sets"),
    ("arrays scans {dst} --mask-dtype uint8", "there are no masks to store as uint8: pass masks="),
    ("info packed table", "unexpected 'table'"),
    ("images photos {dst} --fitt cover", "there is no option --fitt: did you mean '--fit'?"),
    ("images photos {dst} --siz 8", "there is no option --siz: did you mean '--size'?"),
    ("images photos {dst} --fit contian", "invalid choice: 'contian' (choose from"),
    ("arrays scans {dst} --dtype complex64", "dtype 'complex64' cannot be stored here"),
    ("preview packed --text --out x.png", "--out names a .png, for pictures"),
    ("preview table --out x.png", "--out names a .png, for pictures"),
    ("preview packed --augment simclr", "--augment was removed: draw samples of ShardDataset(..., augment="),
    ("preview packed --columns 2", "--columns was removed: the sheet is a little wider than high"),
    ("copy packed {dst} --fields label,label", "fields must be different names"),
    ("copy packed {dst} --fields ''", "argument --fields: takes names"),
    ("copy packed {dst} --codec gif", "argument --codec: invalid choice: 'gif'"),
    ("copy packed {dst} --codec jpeg --quality 101", "must be a whole number from 1 to 100, got '101'"),
    ("split packed {dst} --parts a=0.9 b=0.2", "together at most 1"),
    ("split packed {dst} --parts a=0.5 ../b=0.5", "a plain folder name, got '../b'"),
    ("split packed {dst} --parts a=0.9 --by key-hash --stratify label", "choose one of by='key-hash' and stratify="),
    ("split stream {dst} --parts a=0.5 --stratify label", "neither for text"),
    ("split packed {dst} --parts a=0.9 --format parquet --shard-size 1GB", "(option: --shard-size)"),
    ("copy packed {dst} --format parquet --shard-size 1GB", "(option: --shard-size)"),
    ("copy packed {dst} --add labels.csv", "--add was removed: use packdata.write(view, dst, add="),
    ("copy packed {dst} --update=fixes.csv", "--update was removed: use packdata.write"),
    ("cache --verify", "--verify was removed: a cached shard is verified when it is read"),
    ("verify packed --quick --decode", "not allowed with argument --quick"),
    ("info s3://", "argument DATASET: a URL names a bucket or a server (s3://)"),
    ("images photos s3://", "argument DST: a URL names a bucket or a server"),
]  # fmt: skip

DATA = [
    ("tokens empty {dst}", "Known suffixes are .txt"),
    ("tokens latin.txt {dst}", "latin.txt, line 1: the file is not UTF-8"),
    ("tokens stream {dst}", "stream: a packed dataset cannot be a source"),
    ("tables table {dst}", "table: a packed dataset cannot be a source. 'packdata copy'"),
    ("tables t.csv {dst} --numeric kind", "t.csv, line 2: column 'kind' holds no number ('p')"),
    ("tables t.csv {dst} --target price", "t.csv: missing column 'price'"),
    ("arrays scans {dst} --mask-array marks", "the mask is missing"),
    ("arrays scans {dst} --masks scans", "the mask is missing"),
    ("images photos {dst} --masks classes.txt", "classes.txt: masks= takes a folder"),
    ("images list.csv {dst} --mask-suffix _m", "mask_suffix= is for masks in a folder"),
    ("images photos {dst} --classes latin.txt", "latin.txt: the file is not UTF-8"),
    ("tables latin.csv {dst}", "latin.csv, line 1: the first row is not UTF-8"),
    ("images photos {dst} --annotations latin.csv", "no annotations"),
    ("tables t.csv {dst} --part 0/2 --plan classes.txt", "classes.txt: the file is not a plan that"),
    ("images photos {dst} --classes nowhere", "nowhere: cannot be read (No such file"),
    ("images photos taken --overwrite", "taken: not empty (holds 'thesis.tex')"),
    ("images photos {dst}/a/b --masks empty", "empty: no pictures"),
    ("extend table packed", "table (B) does not match packed (A): only A has field 'image'"),
    ("merge packed stream {dst}/a/b", "stream (B) does not match packed (A)"),
    ("fetch packed", "packed: not a URL"),
    ("diff packed nowhere", "nowhere: there is no such folder"),
    ("split packed {dst} --parts a=0.5 --stratify image", "field 'image' is not a label or number"),
    ("split stream {dst} --parts a=0.01 b=0.9", "Documents stay whole in parts of text; TokenWindows.split"),
    ("split packed {dst} --parts a=0.01 b=0.9", "/a: no sample to write: none meets the condition, or a part's share"),
    ("copy stream {dst} --codec jpeg", "no field that is kept has pictures for codec 'jpeg'"),
    ("copy packed {dst} --fields label --codec jpeg", "no field that is kept has pictures"),
    ("copy stream {dst} --fields tokens", "not read without its fields document_ends, num_tokens: keep them, too"),
    ("copy stream {dst} --where 'num_tokens > 1'", "would tear documents apart"),
    ("copy packed {dst} --where 'label =='", "the condition 'label ==' cannot be read"),
    ("copy packed {dst} --where \"label = 'cat'\"", "cannot be read"),
    ("copy packed {dst} --where \"key.startswith('b')\"", "unexpected \"key.startswith('b')\""),
    ("copy packed {dst} --where 'label + 1 == 2'", "unexpected 'label + 1'; use comparisons"),
    ("copy packed {dst} --where 'nowhere[0] > 500'", "unexpected 'nowhere[0]'"),
    ("copy packed {dst} --where 'label is None'", "unexpected 'None'"),
    ("copy packed {dst} --where 'klass == 1'", "no field 'klass' of one value; there is label, key, score"),
    ("copy packed {dst} --where 'label in 3'", "label in 3 cannot be compared"),
    ("copy packed {dst} --where \"1 < 'a'\"", "1 is a number, 'a' is a text"),
    ("copy packed {dst} --where 'score > 1000'", "no sample to write: none meets the condition"),
    ("finish photos/cat/0.jpg", "0.jpg: cannot be written (File exists)"),
    ("copy flipped {dst}/a/b", "the checksum does not match"),
    ("copy packed packed/inner", "packed/inner: same as the source"),
    ("merge packed more more/inner", "more/inner: same as the source"),
    ("split packed packed --parts a=0.5 b=0.5", "packed/a: same as the source"),
    ("copy packed photos/cat/0.jpg/below", "cannot be packed into (Not a directory)"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run(line: str, dst: Path) -> int:
    try:
        return main([word.format(dst=dst) for word in shlex.split(line)])
    except SystemExit as exit:
        return int(exit.code or 0)


def there(*folders: Path) -> dict[str, int]:
    """Return every file and folder, files with the time of their last change."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {str(path): path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


@pytest.mark.parametrize(
    ("line", "status", "what"),
    [*((line, 2, what) for line, what in USAGE), *((line, 1, what) for line, what in DATA)],
)
def test_wrong_use_is_one_error_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, status: int, what: str
) -> None:
    before = there(Path(), tmp_path)

    assert run(line, tmp_path / "dst") == status

    out, err = capsys.readouterr()
    assert out == ""
    error, *rest = err.splitlines()
    command = line.split()[0]
    assert error.startswith(
        (f"packdata {command}: error: ", "packdata: error: ") if status == 2 else "packdata: "
    )
    assert what.format(dst=tmp_path / "dst") in error
    assert len(rest) <= 1
    assert there(Path(), tmp_path) == before


@pytest.mark.parametrize("command", GONE)
def test_what_was_removed_names_what_to_use_instead(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{command} packed {{dst}}", tmp_path / "dst") == 2

    assert GONE[command] in capsys.readouterr().err


def test_a_part_that_cannot_be_read_leaves_none_of_the_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = pack_samples(tmp_path / "packed", 8, fields=["label", "key"], per_shard=1)
    _, second = PackedReader(damaged).divide([0.5, 0.5])
    (damaged / f"shard-{second[-1]:05}.lmdb").unlink()

    assert run(f"split {damaged} {{dst}}/halves --parts a=0.5 b=0.5", tmp_path / "dst") == 1

    assert "the shard is missing" in capsys.readouterr().err
    assert not (tmp_path / "dst").exists()
