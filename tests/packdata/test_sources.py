import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.errors import SourceError
from loaders.schema import Array
from packdata import TokenOptions, pack_tokens
from packdata.files.splits import open_splits
from packdata.sources.base import Item, Source
from packdata.sources.columns import Column, ColumnNames
from packdata.sources.folders import FolderSource, MaskFolder
from packdata.sources.listed import Listing
from packdata.sources.names import ARRAYS
from packdata.sources.opening import find_splits, open_source
from tests.packdata.breaking import deny_looking
from tests.refusals import At


def touch(root: Path, *names: str) -> Path:
    """Make files whose content is their name: sources list pictures, they do not decode them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def keys(source: Source, start: int = 0) -> list[str]:
    found = [item.key for item in source.items(start)]
    assert [item.key for item in source.items()][start:] == found
    return found


def labels(source: Source, name: str = "label") -> list[Any]:
    return [item.labels.get(name) for item in source.items()]


class TestFolders:
    def test_order_and_classes_are_those_of_image_folder(self, tmp_path: Path) -> None:
        """os.walk sorted as torchvision does it, which differs from plain sorting of paths."""
        names = ["b/2.png", "b/10.png", "a/x/1.jpg", "a/x-y/1.jpg", "a/z.JPEG", "a/x/q/1.jpg"]
        touch(tmp_path, *names, "A/é ü.webp")

        source = open_source(tmp_path)

        expected = []
        for name in sorted(entry.name for entry in os.scandir(tmp_path) if entry.is_dir()):
            for root, _, files in sorted(os.walk(tmp_path / name, followlinks=True)):
                expected += [str(Path(root, file).relative_to(tmp_path)) for file in sorted(files)]
        assert source.kind == "classes"
        assert source.labels == {"label": Column("class", ("A", "a", "b"))}
        assert [item.read() for item in source.items()] == [name.encode() for name in expected]
        assert [item.key for item in source.items()] == [
            name.rsplit(".", 1)[0] for name in expected
        ]
        assert labels(source) == [name.split("/")[0] for name in expected]

    def test_a_flat_folder_has_no_labels(self, tmp_path: Path) -> None:
        source = open_source(touch(tmp_path, "b 1.jpg", "a.b.png", "notes/readme.txt"))

        assert (source.kind, source.labels, len(source)) == ("folder", {}, 2)
        assert keys(source) == ["a.b", "b 1"]
        assert keys(source, 1) == ["b 1"]
        assert keys(source, 2) == []

    def test_other_files_are_counted_and_hidden_ones_not(self, tmp_path: Path) -> None:
        hidden = [".DS_Store", "Thumbs.db", "a/._1.jpg", ".git/1.jpg", "__MACOSX/1.jpg"]
        source = open_source(touch(tmp_path, "a/1.jpg", "a/1.txt", "b.txt", "a/Makefile", *hidden))

        assert len(source) == 1
        assert source.ignored == {".txt": 2, "no suffix": 1}
        assert source.labels["label"].classes == ("a",)

    def test_a_folder_without_pictures_is_no_class(self, tmp_path: Path) -> None:
        (tmp_path / "ant" / "below").mkdir(parents=True)

        source = open_source(touch(tmp_path, "bee/1.jpg", "cow/1.txt"))

        assert isinstance(source, FolderSource)
        assert source.labels["label"].classes == ("bee",)
        assert source.other_folders == ["ant", "cow"]

    def test_files_that_differ_in_the_suffix_alone_keep_it_in_their_keys(
        self, tmp_path: Path
    ) -> None:
        source = open_source(touch(tmp_path, "a/1.png", "a/2.jpg", "b/1.jpg", "a/1.JPG"))

        assert keys(source) == ["a/1.JPG", "a/1.png", "a/2", "b/1"]
        assert keys(source, 1) == ["a/1.png", "a/2", "b/1"]

    def test_links_are_followed(self, tmp_path: Path) -> None:
        root = touch(tmp_path / "root", "a/1.jpg")
        touch(tmp_path / "other", "2.jpg")
        (root / "b").symlink_to(tmp_path / "other")

        assert keys(open_source(root)) == ["a/1", "b/2"]

    @pytest.mark.parametrize("target", ["..", "../..", "nowhere", "link"])
    def test_a_link_to_a_folder_above_or_to_nowhere_is_refused(
        self, tmp_path: Path, target: str
    ) -> None:
        root = touch(tmp_path / "in/root", "a/1.jpg")
        (root / "a/link").symlink_to(target)

        with pytest.raises(SourceError, check=At(root / "a/link")):
            open_source(root)

    def test_folders_above_that_nobody_may_look_at_do_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = touch(tmp_path / "closed/root", "a/1.jpg")
        deny_looking(monkeypatch, tmp_path)
        monkeypatch.chdir(root)

        assert keys(open_source(Path())) == ["a/1"]

    def test_a_vanished_file_fails_when_read(self, tmp_path: Path) -> None:
        source = open_source(touch(tmp_path, "a.jpg", "b.jpg"))
        (tmp_path / "b.jpg").unlink()

        first, second = source.items()

        assert first.read() == b"a.jpg"
        with pytest.raises(SourceError, check=At("b.jpg")):
            second.read()

    def test_an_unreadable_folder_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a fake: root may read everything."""
        touch(tmp_path, "a/1.jpg", "b/1.jpg")
        scandir = os.scandir

        def refuse(path: Any) -> Any:
            if str(path).endswith("b"):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)

        with pytest.raises(SourceError, check=At("b")):
            open_source(tmp_path)

    def test_an_unreadable_file_fails_when_read(self, tmp_path: Path) -> None:
        source = open_source(touch(tmp_path, "a.jpg"))
        (tmp_path / "a.jpg").unlink()
        (tmp_path / "a.jpg").mkdir()

        with pytest.raises(SourceError, check=At("a.jpg")):
            next(source.items()).read()

    def test_a_name_that_is_not_text_is_refused(self, tmp_path: Path) -> None:
        name = os.fsdecode(b"caf\xe9.jpg")
        touch(tmp_path)
        try:
            (tmp_path / name).write_bytes(b"")
        except OSError:
            pytest.skip("this file system stores UTF-8 names only")

        with pytest.raises(SourceError, check=At("caf\\udce9.jpg'")):
            open_source(tmp_path)

    @pytest.mark.parametrize("change", ["size", "time", "name", "more"])
    def test_identity_follows_the_files(self, tmp_path: Path, change: str) -> None:
        touch(tmp_path, "a/1.jpg", "a/2.jpg")
        before = open_source(tmp_path).identity
        assert open_source(tmp_path).identity == before
        path = tmp_path / "a/2.jpg"

        if change == "size":
            stat = path.stat()
            path.write_bytes(b"longer")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        elif change == "time":
            os.utime(path, ns=(1, 1))
        elif change == "name":
            path.rename(tmp_path / "a/3.jpg")
        else:
            touch(tmp_path, "a/3.jpg")

        assert open_source(tmp_path).identity != before

    def test_identity_does_not_follow_the_place(self, tmp_path: Path) -> None:
        touch(tmp_path / "here", "a/1.jpg")
        before = open_source(tmp_path / "here").identity

        (tmp_path / "here").rename(tmp_path / "there")

        assert open_source(tmp_path / "there").identity == before
        json.dumps(before)

    def test_two_masks_of_one_picture_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, check=At(tmp_path)):
            MaskFolder(Listing(touch(tmp_path, "1.png", "1.bmp")))

    def test_masks_are_found_by_key(self, tmp_path: Path) -> None:
        masks = MaskFolder(Listing(touch(tmp_path, "a/1.png", "2.bmp", "b/1.jpg.png")))

        def read(key: str, where: str = "x") -> bytes:
            return masks.find(Item(key, where, bytes))()

        assert read("a/1") == b"a/1.png"
        assert read("b/1.jpg") == b"b/1.jpg.png"
        with pytest.raises(SourceError, check=At("photos/a/1.png")):
            read("a/1.png", "photos/a/1.png")
        with pytest.raises(SourceError, check=At("photos/3.jpg")):
            read("3", "photos/3.jpg")
        (tmp_path / "2.bmp").unlink()
        with pytest.raises(SourceError, check=At("2.bmp)")):
            read("2", "p/2.jpg")


class TestSplits:
    @pytest.mark.parametrize(
        "names",
        [
            ["train/a/1.jpg", "val/a/1.jpg", "extra/a/1.jpg"],
            ["train/a/1.jpg", "val/a/1.jpg", "lost.jpg", "list.csv"],
            ["train-0.tar", "val-0.tar", "unlabelled-0.tar"],
            ["train.tar", "val.tar", "a.jpg"],
            ["train.tar", "val.tar", "cat/x/1.jpg"],
        ],
        ids=lambda names: names[2],
    )
    def test_splits_beside_what_is_none_are_refused(
        self, tmp_path: Path, names: list[str]
    ) -> None:
        """As one source they would mix train and val."""
        with pytest.raises(SourceError, check=At(tmp_path)):
            find_splits(Listing(touch(tmp_path, *names)))

    def test_folders_named_like_splits(self, tmp_path: Path) -> None:
        touch(tmp_path, "val/a/1.jpg", "train/a/1.jpg", "README.md", ".cache/x")

        splits = find_splits(Listing(tmp_path))

        assert splits is not None
        assert list(splits) == ["train", "val"]
        assert keys(open_source(splits["val"])) == ["a/1"]

    def test_training_and_testing_are_splits_too(self, tmp_path: Path) -> None:
        """As in a common layout of MNIST's pictures: they would be two classes otherwise."""
        touch(tmp_path, "testing/7/1.png", "training/7/1.png", "training/8/1.png")

        splits = find_splits(Listing(tmp_path))

        assert splits is not None
        assert list(splits) == ["training", "testing"]

    def test_a_class_tree_has_none(self, tmp_path: Path) -> None:
        assert (
            find_splits(Listing(touch(tmp_path, "train/1.jpg", "car/1.jpg", "bus/1.jpg"))) is None
        )
        assert find_splits(Listing(tmp_path / "train")) is None

    def test_parquet_files_named_like_splits(self, tmp_path: Path) -> None:
        """As Hugging Face publishes them: packing them as one would mix train and test."""
        for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
            pq.write_table(pa.table({"image": [name.encode()]}), tmp_path / f"{name}.parquet")

        splits = find_splits(Listing(tmp_path))

        assert splits is not None
        assert list(splits) == ["train", "test"]
        assert [len(open_source(files)) for files in splits.values()] == [2, 1]

    @pytest.mark.parametrize(
        ("train", "val"),
        [
            (["train.tar"], ["val.tar"]),
            (["train.parquet"], ["val.parquet"]),
            (["train-extra.parquet", "train.parquet"], ["val-0.parquet"]),
            (["train-0.tar", "train_2.TAR", "train.tar"], ["val-0.tar"]),
            (["TRAIN-1.tar", "train-0.tar"], ["Val.tar"]),
        ],
        ids=lambda names: names[-1],
    )
    def test_every_file_of_a_split_belongs_to_it(
        self, tmp_path: Path, train: list[str], val: list[str]
    ) -> None:
        for name in (*train, *val):
            if name.endswith("parquet"):
                pq.write_table(pa.table({"image": [name.encode()]}), tmp_path / name)
            else:
                write_tar(tmp_path / name, {f"{name.replace('.', '-')}.jpg": name.encode()})

        splits = find_splits(Listing(tmp_path))

        assert splits is not None
        assert list(splits) == ["train", "val"]
        found = [[item.read() for item in open_source(files).items()] for files in splits.values()]
        assert [sorted(each) for each in found] == [
            sorted(name.encode() for name in names) for names in (train, val)
        ]

    def test_the_source_of_several_files_is_called_after_their_folder(
        self, tmp_path: Path
    ) -> None:
        for name in ("train-0", "train-1", "val"):
            write_tar(tmp_path / f"{name}.tar", {f"{name}.jpg": b""})

        splits = find_splits(Listing(tmp_path))

        assert splits is not None
        assert [open_source(files).name for files in splits.values()] == [
            tmp_path.name,
            "val.tar",
        ]

    def test_a_split_of_files_of_two_kinds_is_refused(self, tmp_path: Path) -> None:
        splits = find_splits(Listing(touch(tmp_path, "train-0.tar", "train-1.parquet", "val.tar")))

        assert splits is not None
        with pytest.raises(SourceError):
            open_source(splits["train"])

    def test_splits_as_folders_and_as_files_are_refused(self, tmp_path: Path) -> None:
        touch(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "train.tar", "all.tar")
        assert [*(find_splits(Listing(tmp_path)) or ())] == ["train", "val"]

        touch(tmp_path, "test.tar")

        with pytest.raises(SourceError):
            find_splits(Listing(tmp_path))

    def test_files_beside_folders_of_splits_are_counted(self, tmp_path: Path) -> None:
        touch(tmp_path, "train/1.jpg", "val/1.jpg", "train.tar", "list.csv", ".hidden")

        train, val = open_splits(tmp_path).values()

        assert (train.ignored, val.ignored) == ({".tar": 1, ".csv": 1}, {})

    def test_arrays_come_in_no_archives(self, tmp_path: Path) -> None:
        assert (
            find_splits(Listing(touch(tmp_path, "a.npy", "train.tar", "val.tar")), ARRAYS) is None
        )

    def test_files_of_one_split_are_one_source(self, tmp_path: Path) -> None:
        assert find_splits(Listing(touch(tmp_path, "train-0.tar", "train-1.tar"))) is None


class TestLists:
    def test_csv_columns_have_types(self, tmp_path: Path) -> None:
        touch(tmp_path, "my photos/ä 1.jpg", "b.jpg")
        text = (
            "\ufefffilename,class,weight,count,zip,note\r\n"
            'my photos/ä 1.jpg,cat,1,3,007,"two\r\nlines"\r\n\r\nb.jpg,dog,2.5,-4,123,\r\n'
        )
        (tmp_path / "l.csv").write_text(text, encoding="utf-8", newline="")

        source = open_source(tmp_path / "l.csv")
        first, second = source.items()

        assert source.labels == {
            "label": Column("class", ("cat", "dog")),
            "weight": Column("float"),
            "count_": Column("int"),
            "zip": Column("text"),
            "note": Column("text"),
        }
        assert first.labels == {
            "label": "cat",
            "weight": 1.0,
            "count_": 3,
            "zip": "007",
            "note": "two\r\nlines",
        }
        assert second.labels["note"] == ""
        assert [first.key, second.key] == ["my photos/ä 1", "b"]
        assert first.read() == "my photos/ä 1.jpg".encode()
        assert first.where == f"{tmp_path}/l.csv, line 2 (my photos/ä 1.jpg)"
        assert second.where == f"{tmp_path}/l.csv, line 5 (b.jpg)"

    @pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ";"), ("tsv", "\t")])
    def test_other_delimiters(self, tmp_path: Path, suffix: str, delimiter: str) -> None:
        path = tmp_path / f"l.{suffix}"
        path.write_text(f"path{delimiter}label\na.jpg{delimiter}3\n")

        source = open_source(path)

        assert source.labels == {"label": Column("int")}
        assert labels(source) == [3]

    def test_jsonl_values_keep_their_types(self, tmp_path: Path) -> None:
        rows = [
            {"image": "a.jpg", "label": 1, "caption": "x", "boxes": [[1, 2, 3, 4]], "x": 1},
            {"image": "b.jpg", "label": 0, "boxes": [], "x": 0.5},
        ]
        path = tmp_path / "l.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")

        source = open_source(path)

        assert source.labels == {
            "label": Column("int"),
            "caption": Column("text"),
            "boxes": Column("json"),
            "x": Column("float"),
        }
        assert labels(source, "caption") == ["x", None]
        assert labels(source, "boxes") == [[[1, 2, 3, 4]], []]

    def test_a_missing_label_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "l.csv").write_text("path,label,age\na.jpg,cat,3\nb.jpg,,\nc.jpg,,\n")

        source = open_source(tmp_path / "l.csv")

        assert labels(source) == ["cat", None, None]
        assert labels(source, "age") == [3, None, None]

    def test_blanks_around_what_names_something_do_not_count(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.jpg", "b.jpg", "m.png")
        text = "key,path,mask,label,note\n x,a.jpg , m.png, cat, hi\ny,\tb.jpg,m.png,cat ,\n"
        (tmp_path / "l.csv").write_text(text)

        source = open_source(tmp_path / "l.csv")
        first, second = source.items()

        assert source.labels["label"] == Column("class", ("cat",))
        assert labels(source) == ["cat", "cat"]
        assert labels(source, "note") == [" hi", ""]
        assert keys(source) == ["x", "y"]
        assert [first.read(), second.read()] == [b"a.jpg", b"b.jpg"]
        assert first.read_mask is not None
        assert first.read_mask() == b"m.png"

    def test_a_list_may_write_a_blank_behind_each_comma(self, tmp_path: Path) -> None:
        text = 'path, label, note, age\na.jpg, "cat, big", "x, y", 3\nb.jpg, dog, z, \n'
        (tmp_path / "l.csv").write_text(text)

        source = open_source(tmp_path / "l.csv")

        assert source.labels["label"].classes == ("cat, big", "dog")
        assert labels(source, "note") == ["x, y", "z"]
        assert labels(source, "age") == [3, None]

    @pytest.mark.parametrize(
        ("cells", "kind", "values"),
        [
            (["10", "2", "nan"], "int", [10, 2, None]),
            (["cat", "NaN", "dog"], "class", ["cat", None, "dog"]),
            (["cat", " ", "dog"], "class", ["cat", None, "dog"]),
            (["0.5", "-nan", "1"], "float", [0.5, None, 1.0]),
        ],
    )
    def test_a_label_that_is_nan_is_missing(
        self, tmp_path: Path, cells: list[str], kind: str, values: list[Any]
    ) -> None:
        rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
        (tmp_path / "l.csv").write_text(f"path,label\n{rows}")

        source = open_source(tmp_path / "l.csv")

        assert source.labels["label"].kind == kind
        assert labels(source) == values

    def test_nan_among_numbers_is_missing_and_among_texts_a_text(self, tmp_path: Path) -> None:
        text = "path,score,age,note\na.jpg,0.5,3,nan\nb.jpg,nan,NaN,x\nc.jpg,0.5,,\n"
        (tmp_path / "l.csv").write_text(text)

        source = open_source(tmp_path / "l.csv")

        assert source.labels == {
            "score": Column("float", num_missing=1),
            "age": Column("int", num_missing=2),
            "note": Column("text"),
        }
        assert labels(source, "score") == [0.5, None, 0.5]
        assert labels(source, "age") == [3, None, None]
        assert labels(source, "note") == ["nan", "x", ""]

    def test_nan_in_json_lines_is_missing(self, tmp_path: Path) -> None:
        text = '{"path": "a", "label": 1}\n{"path": "b", "label": NaN, "score": NaN}\n'
        (tmp_path / "l.jsonl").write_text(text)

        source = open_source(tmp_path / "l.jsonl")

        assert source.labels["label"] == Column("int")
        assert labels(source) == [1, None]

    def test_cells_of_tsv_are_between_tabs(self, tmp_path: Path) -> None:
        (tmp_path / "l.tsv").write_text("path\tsize, x, y\tlabel\na.jpg\t1\t3\n")

        assert labels(open_source(tmp_path / "l.tsv")) == [3]

    def test_blank_lines_above_the_header_do_not_hide_the_delimiter(self, tmp_path: Path) -> None:
        (tmp_path / "l.csv").write_text("\r\n\npath;label\na.jpg;3\n")

        assert labels(open_source(tmp_path / "l.csv")) == [3]

    def test_a_picture_that_is_listed_twice_wants_keys(self, tmp_path: Path) -> None:
        text = "path,label\na.jpg,1\na.jpg,2\n"
        (tmp_path / "l.csv").write_text(text)
        with pytest.raises(SourceError, check=At("l.csv")):
            open_source(tmp_path / "l.csv")

        (tmp_path / "l.csv").write_text("key,path\nx,a.jpg\nnan,a.jpg\n")

        assert keys(open_source(tmp_path / "l.csv")) == ["x", "nan"]

    def test_masks_and_keys_have_columns(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.jpg", "m/a.png")
        text = "key,path,mask,image\nx,a.jpg,m/a.png,7\ny,a.jpg,,8\n"
        (tmp_path / "l.csv").write_text(text)

        source = open_source(tmp_path / "l.csv")
        first, second = source.items()

        assert source.has_masks
        assert keys(source) == ["x", "y"]
        assert source.labels == {"image_": Column("int")}
        assert first.read_mask is not None
        assert first.read_mask() == b"m/a.png"
        assert second.read_mask is not None
        with pytest.raises(SourceError, check=At("l.csv, line 3 (a.jpg)")):
            second.read_mask()

    def test_a_missing_mask_file_tells_its_place_once(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.jpg")
        (tmp_path / "l.csv").write_text("path,mask\na.jpg,nope.png\n")
        (item,) = open_source(tmp_path / "l.csv").items()
        assert item.read_mask is not None

        with pytest.raises(
            SourceError, check=At("l.csv, line 2 (a.jpg) (mask nope.png)")
        ) as caught:
            item.read_mask()

        assert str(caught.value).startswith(f"{item.where} (mask nope.png): ")

    def test_the_columns_can_be_named(self, tmp_path: Path) -> None:
        touch(tmp_path, "1", "2")
        (tmp_path / "l.csv").write_text("photo,path,seg\n1,other.jpg,2\n")

        source = open_source(tmp_path / "l.csv", columns=ColumnNames("photo", "seg"))
        (item,) = source.items()

        assert item.read() == b"1"
        assert item.read_mask is not None
        assert item.read_mask() == b"2"
        with pytest.raises(SourceError, check=At("l.csv")):
            open_source(tmp_path / "l.csv", columns=ColumnNames("nope"))
        with pytest.raises(SourceError, check=At("l.csv")):
            open_source(tmp_path / "l.csv", columns=ColumnNames("photo", "nope"))

    def test_paths_that_differ_in_the_suffix_alone_keep_it_in_their_keys(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "l.csv").write_text("path\n./x/a.jpg\nb.jpg\nx/a.png\n")

        assert keys(open_source(tmp_path / "l.csv")) == ["x/a.jpg", "b", "x/a.png"]

    def test_identity_follows_the_pictures_too(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.jpg")
        (tmp_path / "l.csv").write_text("path\na.jpg\n")
        before = open_source(tmp_path / "l.csv").identity

        os.utime(tmp_path / "a.jpg", ns=(1, 1))

        assert open_source(tmp_path / "l.csv").identity != before

    @pytest.mark.parametrize(
        ("name", "text", "place"),
        [
            ("l.csv", "path,label\na.jpg,1,2\n", "l.csv, line 2"),
            ("l.csv", "path,label\na.jpg,1\nb.jpg\n", "l.csv, line 3"),
            ("l.csv", "path,path\na.jpg,1\n", "l.csv"),
            ("l.csv", "path,key\na.jpg,k\nb.jpg, \n", "l.csv, line 3"),
            ("l.jsonl", '{"path": "a", "key": "k"}\n{"path": "b"}\n', "l.jsonl, line 2"),
            ("l.csv", "label\n1\n", "l.csv"),
            ("l.csv", "path,label\n,1\n", "l.csv, line 2"),
            ("l.csv", "path\n", "l.csv"),
            ("l.csv", "", "l.csv"),
            ("l.csv", "path,label\na.jpg,1\n./a.jpg,2\n", "l.csv"),
            ("l.csv", "path,label\na.jpg,1\na.jpg,2\n", "l.csv"),
            ("l.csv", 'path\n"a.jpg\n', "l.csv, line 2"),
            ("l.csv", "path\ra.jpg\nb.jpg\n", "l.csv"),
            ("l.csv", "path,a b,a-b\na.jpg,1,2\n", "l.csv"),
            ("l.csv", b"path\ncaf\xe9.jpg\n", "l.csv, line 2"),
            ("l.csv", "image,label\na.jpg,1\n".encode("utf-16"), "l.csv"),
            ("l.jsonl", '{"path": "a"}\n{"path"\n', "l.jsonl, line 2"),
            ("l.jsonl", '{"path": "a"}\n[1]\n', "l.jsonl, line 2"),
            ("l.jsonl", '{"path": 3}\n', "l.jsonl, line 1"),
            ("l.jsonl", '{"path": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "l.jsonl, line 1"),
        ],
        ids=range(20),
    )  # fmt: skip
    def test_a_wrong_list_is_refused_with_the_place(
        self, tmp_path: Path, name: str, text: str | bytes, place: str
    ) -> None:
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)

        with pytest.raises(SourceError, check=At(place)):
            open_source(tmp_path / name)

    @pytest.mark.parametrize("cell", ["gone.jpg", "https://x.org/a.jpg"])
    def test_a_listed_file_that_is_not_there(self, tmp_path: Path, cell: str) -> None:
        (tmp_path / "l.csv").write_text(f"path\n{cell}\n")

        with pytest.raises(SourceError, check=At(f"l.csv, line 2 ({cell})")):
            next(open_source(tmp_path / "l.csv").items()).read()


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


SAMPLES = {
    "./000/a.jpg": b"A" * 700,
    "./000/a.cls": b"3",
    "./000/a.json": b'{"x": [1]}',
    "./000/a.txt": "größer".encode(),
    "./000/a.seg.png": b"M",
    "./000/b.c.d": b"?",
    "./000/b.PNG": b"B",
    "./000/b.cls": b"0\n",
    "./000/b.json": b"1",
    "./000/b.txt": b"",
    "./000/b.mask.png": b"N",
    "./000/._b.jpg": b"x",
}


class TestTars:
    def test_members_of_a_name_are_a_sample(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "s.tar", SAMPLES)

        source = open_source(path)
        first, second = source.items()

        assert (source.kind, len(source), source.has_masks) == ("tar", 2, True)
        assert source.labels == {
            "label": Column("int"),
            "json": Column("json"),
            "caption": Column("text"),
        }
        assert source.ignored == {".c.d": 1}
        assert [first.key, second.key] == ["000/a", "000/b"]
        assert first.labels == {"label": 3, "json": {"x": [1]}, "caption": "größer"}
        assert first.where == f"{path}: ./000/a.jpg"
        assert [first.read(), second.read()] == [b"A" * 700, b"B"]
        assert first.read_mask is not None
        assert first.read_mask() == b"M"
        assert [item.read() for item in source.items(1)] == [b"B"]

    @pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz"])
    def test_compressed_tars_are_refused(self, tmp_path: Path, name: str) -> None:
        path = write_tar(tmp_path / name, SAMPLES, "w:gz")

        with pytest.raises(SourceError, check=At(name)) as caught:
            open_source(path)

        assert "gunzip" in caught.value.hint

    def test_names_of_classes_in_cls(self, tmp_path: Path) -> None:
        members = {"1.jpg": b"", "1.cls": b"dog\n", "2.jpg": b"", "2.cls": b"cat", "3.jpg": b""}

        source = open_source(write_tar(tmp_path / "a.tar", members))

        assert source.labels == {"label": Column("class", ("cat", "dog"))}
        assert labels(source) == ["dog", "cat", None]

    @pytest.mark.parametrize(
        ("values", "column"),
        [
            (["dog", "cat"], Column("class", ("cat", "dog"))),
            ([3, 1], Column("int")),
            ([3, "cat"], Column("class", ("3", "cat"))),
        ],
    )
    def test_a_label_inside_json(self, tmp_path: Path, values: list[Any], column: Column) -> None:
        members = {}
        for i, value in enumerate(values):
            members[f"{i}.jpg"] = b""
            members[f"{i}.json"] = json.dumps({"label": value, "other": value}).encode()
        path = write_tar(tmp_path / "a.tar", members)

        for name in (None, "other"):
            source = open_source(path, columns=ColumnNames(label=name))
            assert source.labels == {"json": Column("json"), "label": column}
            assert [item.labels["label"] for item in source.items()] == values
        with pytest.raises(SourceError, check=At("a.tar")):
            open_source(path, columns=ColumnNames(label="lost"))
        for names in (ColumnNames("lost"), ColumnNames(mask="lost")):  # a tar has a label alone
            with pytest.raises(SourceError, match="no columns"):
                open_source(path, columns=names)

    def test_another_label_inside_json_is_another_source(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "a.tar", {"1.jpg": b"", "1.json": b'{"a": 1, "b": 2}'})

        sources = [
            open_source(tmp_path / "a.tar", columns=ColumnNames(label=name)) for name in "ab"
        ]

        assert list(map(labels, sources)) == [[1], [2]]
        assert sources[0].labels == sources[1].labels
        assert sources[0].identity != sources[1].identity

    def test_a_label_inside_json_gives_way_to_cls(self, tmp_path: Path) -> None:
        members = {"1.jpg": b"", "1.cls": b"5", "1.json": b'{"label": 7}'}
        path = write_tar(tmp_path / "a.tar", members)
        named = write_tar(tmp_path / "b.tar", {**members, "1.cls": b"dog"})

        assert labels(open_source(path)) == [5]
        for each in path, named:
            assert labels(open_source(each, columns=ColumnNames(label="label"))) == [7]

    def test_several_files_and_patterns(self, tmp_path: Path) -> None:
        for i in range(3):
            write_tar(
                tmp_path / f"t-{i}.tar", {f"{i}{j}.jpg": f"{i}{j}".encode() for j in range(2)}
            )

        assert keys(open_source(tmp_path)) == ["00", "01", "10", "11", "20", "21"]
        assert keys(open_source(tmp_path / "t-[12].tar")) == ["10", "11", "20", "21"]
        source = open_source(tmp_path)
        for start in range(7):
            assert [item.read() for item in source.items(start)] == [
                key.encode() for key in keys(source)[start:]
            ]

    @pytest.mark.parametrize(
        "files",
        [
            [{"1.jpg": b"", "1.png": b""}],
            [{"1.jpg": b""}, {"1.jpg": b""}],
            [{"1.jpg": b"", "2.jpg": b"", "1.cls": b"1"}],
        ],
        ids=["two pictures of a name", "a key in two files", "members that are no neighbours"],
    )
    def test_a_key_that_stands_twice_is_refused(
        self, tmp_path: Path, files: list[dict[str, bytes]]
    ) -> None:
        for name, members in zip("ab", files, strict=False):
            write_tar(tmp_path / f"{name}.tar", members)

        with pytest.raises(SourceError, check=At("a.tar")):
            open_source(tmp_path)

    def test_joined_tars_are_refused(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "a.tar", {"1.jpg": b""})
        path.write_bytes(path.read_bytes() * 2)

        with pytest.raises(SourceError, check=At("a.tar")):
            open_source(path)

    def test_what_is_passed_over_is_told_by_all_that_follows_the_first_dot(
        self, tmp_path: Path
    ) -> None:
        """A picture that is passed over shall not look like those that are packed."""
        members = {"1.jpg": b"", "2.v2.jpg": b"", "3": b""}

        source = open_source(write_tar(tmp_path / "a.tar", members))

        assert source.ignored == {".v2.jpg": 1, "no suffix": 1}
        with pytest.raises(SourceError, check=At("b.tar")):
            open_source(write_tar(tmp_path / "b.tar", {"2.v2.raw": b""}))

    @pytest.mark.parametrize(
        ("members", "place"),
        [
            ({"1.jpg": b"", "2.cls": b"1"}, "a.tar"),
            ({"1.jpg": b"", "1.cls": b"cat", "2.jpg": b"", "2.cls": b"1"}, "a.tar"),
            ({"1.jpg": b"", "1.cls": b" "}, "a.tar"),
            ({"1.jpg": b"", "1.cls": b"\xff"}, "a.tar: 1.cls"),
            ({"1.jpg": b"", "1.json": b"{"}, "a.tar: 1.json"),  # which may hold the label
        ],
        ids=["no picture", "numbers and names", "no label", "no text", "no JSON"],
    )
    def test_samples_that_are_not_whole_are_refused(
        self, tmp_path: Path, members: dict[str, bytes], place: str
    ) -> None:
        with pytest.raises(SourceError, check=At(place)):
            open_source(write_tar(tmp_path / "a.tar", members))

    def test_a_caption_that_is_no_text_is_rejected_in_its_turn(self, tmp_path: Path) -> None:
        members = {"1.jpg": b"", "1.txt": b"\xff", "2.jpg": b"2", "2.txt": b"two"}

        one, two = open_source(write_tar(tmp_path / "a.tar", members)).items()

        with pytest.raises(SourceError, check=At("a.tar: 1.txt")):
            one.read()
        assert (two.read(), two.labels) == (b"2", {"caption": "two"})

    def test_a_cut_tar_is_refused_wherever_it_is_cut(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "a.tar", {f"{i}.jpg": bytes(600) for i in range(3)})
        data = path.read_bytes()
        end = 3 * (512 + 1024)

        for size in range(0, end + 1, 256):
            path.write_bytes(data[:size])
            with pytest.raises(SourceError):
                open_source(path)

    def test_a_tar_that_changed_since(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "a.tar", {"1.jpg": b"1" * 999})
        (item,) = open_source(path).items()
        path.write_bytes(path.read_bytes()[:600])

        with pytest.raises(SourceError, check=At("a.tar: 1.jpg")):
            item.read()


class TestParquet:
    def test_hugging_face_columns(self, tmp_path: Path) -> None:
        features = {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}}
        table = pa.table(
            {
                "image": [{"bytes": b"A", "path": None}, {"bytes": None, "path": "b.jpg"}],
                "label": pa.array([1, 0], pa.int64()),
                "caption": ["x", None],
                "score": pa.array([1.5, None], pa.float64()),
                "tags": [[1], []],
            }
        ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, tmp_path / "a.parquet")
        touch(tmp_path, "b.jpg")

        source = open_source(tmp_path / "a.parquet")
        first, second = source.items()

        assert source.labels == {
            "label": Column("class", ("zebra", "ant"), numbered=True),
            "caption": Column("text"),
            "score": Column("float", num_missing=1),
            "tags": Column("json"),
        }
        assert first.labels == {"label": 1, "caption": "x", "score": 1.5, "tags": [1]}
        assert second.labels == {"label": 0, "caption": None, "score": None, "tags": []}
        assert [first.read(), second.read()] == [b"A", b"b.jpg"]
        assert first.key == "a/00000000"
        assert first.where == f"{tmp_path}/a.parquet, row 0"

    @pytest.mark.parametrize("kind", ["List", "Sequence", "LargeList"])
    def test_lists_of_classes_keep_their_names(self, tmp_path: Path, kind: str) -> None:
        one = {"names": ["zebra", "ant"], "_type": "ClassLabel"}
        features = {"label": {"feature": one, "_type": kind}}
        table = pa.table({"image": [b"1", b"2"], "label": [[1, 0], []]})
        info = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(table.replace_schema_metadata(info), tmp_path / "a.parquet")

        source = open_source(tmp_path / "a.parquet")

        field = Array(dtype="int64", dims=(None,), classes=("zebra", "ant"))
        assert source.labels["label"].field == field
        assert labels(source) == [[1, 0], []]

    def test_only_whole_numbers_are_numbers_of_classes(self, tmp_path: Path) -> None:
        features = {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}}
        table = pa.table({"image": [b"1", b"2"], "label": [1.0, 0.0]}).replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        pq.write_table(table, tmp_path / "a.parquet")

        source = open_source(tmp_path / "a.parquet")

        assert source.labels == {"label": Column("float")}
        assert labels(source) == [1.0, 0.0]

    @pytest.mark.parametrize("kind", ["int", "float"])
    def test_numbers_that_are_all_missing_are_numbers(self, tmp_path: Path, kind: Any) -> None:
        arrow = pa.int64() if kind == "int" else pa.float32()
        table = pa.table({"image": [b"1", b"2"], "x": pa.array([None, None], arrow)})
        pq.write_table(table, tmp_path / "a.parquet")

        assert open_source(tmp_path).labels == {"x": Column(kind, num_missing=2)}

    def test_numbers_beyond_int64_are_numbers(self, tmp_path: Path) -> None:
        table = pa.table({"image": [b"1"], "x": pa.array([1 << 63], pa.uint64())})
        pq.write_table(table, tmp_path / "a.parquet")

        assert open_source(tmp_path).labels == {"x": Column("int")}

    def test_plain_binary_and_names_as_labels(self, tmp_path: Path) -> None:
        table = {
            "jpg": [b"1", b"2"],
            "other": [b"x", b"y"],
            "class": ["b", "a"],
            "key": ["k", "l"],
        }
        pq.write_table(pa.table(table), tmp_path / "a.parquet")

        source = open_source(tmp_path)

        assert source.labels == {"other": Column("bytes"), "label": Column("class", ("a", "b"))}
        assert keys(source) == ["k", "l"]
        assert [item.read() for item in source.items()] == [b"1", b"2"]

    @pytest.mark.parametrize("names", [["dog", "cat"], ["cat"], []])
    def test_files_of_other_classes_are_refused(self, tmp_path: Path, names: list[str]) -> None:
        """The numbers of one would be other classes in the next."""
        for file, classes in (("a", ["cat", "dog"]), ("b", ["cat", "dog"]), ("c", names)):
            table = pa.table({"image": [b""], "label": [0]})
            features = {"label": {"names": classes, "_type": "ClassLabel"}} if classes else {}
            meta = {"huggingface": json.dumps({"info": {"features": features}})}
            pq.write_table(table.replace_schema_metadata(meta), tmp_path / f"{file}.parquet")

        with pytest.raises(SourceError, check=At("c.parquet")):
            open_source(tmp_path)
        assert open_source(str(tmp_path / "[ab].parquet")).labels["label"].classes == (
            "cat",
            "dog",
        )

    def test_files_of_one_name_have_their_folders_in_their_keys(self, tmp_path: Path) -> None:
        """As Hive and Spark write them."""
        for name in ("y=1/data", "y=2/data", "y=2/more"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"image": [b"1", b"2"]}), tmp_path / f"{name}.parquet")

        source = open_source(tmp_path / "*" / "*.parquet")

        expected = [
            f"{n}/0000000{i}" for n in ("y=1/data", "y=2/data", "y=2/more") for i in (0, 1)
        ]
        assert keys(source) == expected
        assert keys(open_source(tmp_path / "y=2")) == [
            "data/00000000",
            "data/00000001",
            "more/00000000",
            "more/00000001",
        ]

    def test_files_of_one_name_but_for_the_suffix_keep_it_in_their_keys(
        self, tmp_path: Path
    ) -> None:
        for name in ("a.parquet", "a.PARQUET"):
            pq.write_table(pa.table({"image": [b""]}), tmp_path / name)

        assert keys(open_source(tmp_path)) == ["a.PARQUET/00000000", "a.parquet/00000000"]

    def test_identity_follows_the_folders_that_are_in_the_keys(self, tmp_path: Path) -> None:
        for name in ("x", "y"):
            (tmp_path / name).mkdir()
            pq.write_table(pa.table({"image": [b""]}), tmp_path / name / "data.parquet")
        before = open_source(tmp_path / "*" / "data.parquet").identity
        assert open_source(tmp_path / "*" / "data.parquet").identity == before

        (tmp_path / "y").rename(tmp_path / "z")

        assert open_source(tmp_path / "*" / "data.parquet").identity != before

    def test_any_row_can_be_the_start(self, tmp_path: Path) -> None:
        for i, rows in enumerate([70, 0, 50]):
            table = pa.table(
                {"image": pa.array([f"{i}-{j}".encode() for j in range(rows)], pa.binary())}
            )
            pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=40)
        source = open_source(tmp_path)
        everything = [item.read() for item in source.items()]

        assert len(source) == len(everything) == 120
        for start in (0, 1, 31, 32, 39, 40, 69, 70, 71, 110, 119, 120):
            assert [item.read() for item in source.items(start)] == everything[start:]

    def test_masks_and_missing_pictures(self, tmp_path: Path) -> None:
        table = pa.table({"image": pa.array([b"1", None], pa.binary()), "mask": [b"m", b"n"]})
        pq.write_table(table, tmp_path / "a.parquet")

        first, second = open_source(tmp_path / "a.parquet").items()

        assert first.read_mask is not None
        assert first.read_mask() == b"m"
        with pytest.raises(SourceError, check=At("a.parquet, row 1")):
            second.read()

    def test_a_row_without_a_key_is_refused(self, tmp_path: Path) -> None:
        table = {"image": [b"1", b"2"], "key": ["k", None]}
        pq.write_table(pa.table(table), tmp_path / "a.parquet")

        with pytest.raises(SourceError, check=At("a.parquet, row 1")):
            open_source(tmp_path / "a.parquet")

    @pytest.mark.parametrize(
        "kind", [pa.int64(), pa.uint8(), pa.dictionary(pa.int8(), pa.int32())]
    )
    def test_whole_numbers_are_keys_as_in_lists(self, tmp_path: Path, kind: pa.DataType) -> None:
        numbers = pa.array([7, 12]).cast(kind if pa.types.is_integer(kind) else pa.int32())
        column = numbers if pa.types.is_integer(kind) else numbers.dictionary_encode()
        table = {"image": [b"1", b"2"], "key": column}
        pq.write_table(pa.table(table), tmp_path / "a.parquet")

        source = open_source(tmp_path / "a.parquet")

        assert keys(source) == ["7", "12"]
        assert source.labels == {}

    @pytest.mark.parametrize(
        "values",
        [
            pa.Array.from_buffers(
                pa.string(),
                1,
                [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")],
            ),
            pa.array([253_402_300_800_000_000], pa.timestamp("us")),
            pa.array([1], pa.timestamp("us", "Foo/Bar")),
        ],
        ids=["no UTF-8", "the year 10,000", "no such zone"],
    )
    def test_a_value_that_python_has_not_is_an_error_with_its_place(
        self, tmp_path: Path, values: pa.Array
    ) -> None:
        pq.write_table(pa.table({"image": [b"1"], "x": values}), tmp_path / "a.parquet")

        with pytest.raises(SourceError, check=At("a.parquet, rows 0 to 0")):
            list(open_source(tmp_path / "a.parquet").items())

    def test_wrong_files_say_so(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        path.write_bytes(b"PAR1 nonsense")
        with pytest.raises(SourceError, check=At("a.parquet")):
            open_source(path)

        pq.write_table(pa.table({"x": [1]}), path)
        with pytest.raises(SourceError, check=At("a.parquet")):
            open_source(path)
        with pytest.raises(SourceError, check=At("a.parquet")):
            open_source(path, columns=ColumnNames("x"))

        twice = pa.Table.from_arrays([pa.array([b"1"])] * 2, ["image", "image"])
        pq.write_table(twice, path)
        with pytest.raises(SourceError, check=At("a.parquet")):
            open_source(path)
        with pytest.raises(SourceError, check=At("a.parquet")):
            pack_tokens(path, tmp_path / "out", TokenOptions(text_column="image"))
        (tmp_path / "a.csv").write_text("text,text\na,b\n")
        with pytest.raises(SourceError, check=At("a.csv")):
            pack_tokens(tmp_path / "a.csv", tmp_path / "out")
        (tmp_path / "a.csv").unlink()

        pq.write_table(pa.table({"x": [1]}), path)
        pq.write_table(pa.table({"image": [b"1"]}), tmp_path / "b.parquet")
        with pytest.raises(SourceError, check=At("b.parquet")):
            open_source(tmp_path)

    @pytest.mark.parametrize("key", ["k", 7])
    def test_the_same_key_twice(self, tmp_path: Path, key: Any) -> None:
        pq.write_table(
            pa.table({"image": [b"1", b"2"], "key": [key, key]}), tmp_path / "a.parquet"
        )

        with pytest.raises(SourceError, check=At("a.parquet")):
            open_source(tmp_path)


class TestRecognition:
    @pytest.mark.parametrize(
        ("names", "opened", "options"),
        [
            ([], "", {}),
            ([], "nothing", {}),
            ([], "*.tar", {}),
            (["a-0.tar"], "a-{0..1}.tar", {}),  # braces are no pattern
            (["a.txt", "b/c.txt"], "", {}),
            (["cat/1.jpg", "stray.jpg"], "", {}),
            (["a/1.jpg", "a/1.png", "a/1.jpg.png"], "", {}),  # two have one key
            (["manifest.json", "shard-00000.parquet"], "", {}),
            (["a.tar", "b.parquet"], "", {}),
            (["a.jpg"], "", {"columns": ColumnNames("x")}),
        ],
        ids=str,
    )
    def test_what_is_no_source_is_refused(
        self, tmp_path: Path, names: list[str], opened: str, options: dict[str, Any]
    ) -> None:
        with pytest.raises(SourceError, check=At(tmp_path / opened)):
            open_source(touch(tmp_path, *names) / opened, **options)

    def test_a_link_that_leads_nowhere_is_no_source(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").symlink_to(tmp_path / "gone.csv")

        with pytest.raises(SourceError, check=At(tmp_path / "a.csv")):
            open_source(tmp_path / "a.csv")

    def test_unknown_files_come_with_a_hint_of_their_own(self, tmp_path: Path) -> None:
        hints = set()
        for name in ("a.mds", "a.jpg", "a.xyz"):
            touch(tmp_path, name)
            with pytest.raises(SourceError, check=At(name)) as caught:
                open_source(tmp_path / name)
            hints.add(caught.value.hint)

        assert len(hints) == 3

    def test_an_archive_beside_folders_of_pictures_is_refused(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "extra.tar", {"1.jpg": b""})
        touch(tmp_path, "README.md", ".cache/1.jpg", "notes/a.txt", "notes/._1.jpg")
        assert open_source(tmp_path).kind == "tar"

        touch(tmp_path, "cat/1.jpg", "dog/1.jpg")

        with pytest.raises(SourceError):
            open_source(tmp_path)
        assert open_source(tmp_path / "*.tar").kind == "tar"
        (tmp_path / "extra.tar").unlink()
        assert open_source(tmp_path).kind == "classes"

    def test_an_archive_beside_pictures_is_skipped_and_counted(self, tmp_path: Path) -> None:
        source = open_source(touch(tmp_path, "1.jpg", "old.tar"))

        assert (source.kind, source.ignored) == ("folder", {".tar": 1})
