"""``packdata copy --update``: other values for some fields of some samples, and all else byte for byte."""

from pathlib import Path

import pytest

from loaders import ShardDataset
from loaders.errors import SchemaError, SourceError
from loaders.schema import Array, Json, Label, Text
from packdata.packed.edit import CopyOptions, copy_dataset
from tests.packdata.packing import CLASSES, pack, pack_samples
from tests.packdata.reading import PackedReader
from tests.refusals import At


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Samples bird/000, cat/001, dog/002, bird/003, ..."""
    return pack_samples(tmp_path / "a", 9)


def updated(folder: Path, text: str, **options: object) -> PackedReader:
    table = folder.parent / "fixes.csv"
    table.write_text(text, encoding="utf-8")
    copy = folder.parent / "b"
    copy_dataset(folder, copy, CopyOptions(update=table, **options), overwrite=True)  # type: ignore[arg-type]
    return PackedReader(copy, check=True)


def test_named_cells_change_and_all_else_stays(folder: Path) -> None:
    text = 'key,label,score,tags\ncat/001,dog,7.5,"[""day"", ""night""]"\nbird/003,,,[]\ndog/008,0,,\n'

    after, before = updated(folder, text), PackedReader(folder)

    assert after.schema == before.schema
    assert after.column("label").tolist() == [0, 2, 2, 0, 1, 2, 0, 1, 0]
    assert after.column("score").tolist()[:3] == [0, 7.5, 0.5]
    assert [after.sample(i)["tags"].tolist() for i in (1, 3)] == [[1, 1], [0, 0]]
    changed = {(1, "label"), (1, "score"), (1, "tags"), (3, "tags"), (8, "label")}
    for i in range(9):
        records = before.records_of(i)
        for name, record in after.records_of(i).items():
            assert (record.tobytes() == records[name].tobytes()) == ((i, name) not in changed)


def test_no_class_gets_another_number_where_its_last_sample_changes(folder: Path) -> None:
    text = "key,label\nbird/000,cat\nbird/003,cat\nbird/006,cat\n"

    after = updated(folder, text)

    assert ShardDataset(after.path).classes == CLASSES
    assert 0 not in after.column("label")


def test_texts_json_and_whole_numbers(tmp_path: Path) -> None:
    fields = {"key": Text(), "note": Json(), "n": Array("int64"), "c": Label(None)}
    rows = [{"key": str(i), "note": {"a": i}, "n": i, "c": i} for i in range(3)]
    folder = pack(tmp_path / "a", fields, rows)

    after = updated(folder, 'n,key,note,c\n-5,1,"{""b"": [1]}",4\n,2,null,\n')

    assert [after.sample(i)["note"] for i in range(3)] == [{"a": 0}, {"b": [1]}, None]
    assert after.column("n").tolist() == [0, -5, 2]
    assert after.column("c").tolist() == [0, 4, 2]
    assert updated(folder, "n,key\n1,one\n", on="n").keys() == ["0", "one", "2"]


def test_samples_of_a_class_are_named_by_it_or_by_its_number(folder: Path) -> None:
    after = updated(folder, "label,score\ncat,7\n2,8\n", on="label")

    assert after.column("score").tolist()[:6] == [0, 7, 8, 0.75, 7, 8]
    with pytest.raises(SourceError, check=At("fixes.csv")):
        updated(folder, "label,score\n2,8\ndog,8\n", on="label")
    with pytest.raises(SourceError, check=At("fixes.csv")):
        updated(folder, "label,score\nhorse,8\n3,1\n", on="label")


def test_conditions_see_what_changed(folder: Path) -> None:
    after = updated(folder, "key,label\ncat/001,dog\n", where="label == 'dog'")

    assert after.keys() == ["cat/001", "dog/002", "dog/005", "dog/008"]


@pytest.mark.parametrize(
    "text",
    [
        "key,label\ncat/01,dog\nx,dog\n",
        "key,label\ncat/001,horse\n",
        "key,label\ncat/001,fish\n",
        "key,label\ncat/001,3\n",
        "key,tags\ncat/001,day\n",
        "key,tags\ncat/001,[1]\n",
        'key,tags\ncat/001,"[[""day""]]"\n',
        'key,tags\ncat/001,"{""day"": 1}"\n',
        f"key,tags\ncat/001,{'[' * 100_000}\n",
        "key,score\ncat/001,much\n",
        "key,width\ncat/001,1.5\n",
        "key,boxes\ncat/001,[]\n",
        "key,lable\ncat/001,dog\n",
        "name,label\ncat/001,dog\n",
        "key,label\na,dog\nb,dog\na,cat\n",
    ],
    ids=lambda text: text[:40],
)
def test_what_does_not_fit_is_an_error_and_nothing_is_written(folder: Path, text: str) -> None:
    with pytest.raises(SourceError):
        updated(folder, text)

    assert not (folder.parent / "b").exists()


def test_a_field_that_is_left_out_cannot_change(folder: Path) -> None:
    with pytest.raises(SchemaError):
        updated(folder, "key,label\ncat/001,dog\n", fields=["key"])
    with pytest.raises(SourceError, check=At("fixes.csv")):
        updated(folder, "key\ncat/001\n")
    CopyOptions(update="fixes.csv", on="label")
    with pytest.raises(ValueError):
        CopyOptions(on="label")
