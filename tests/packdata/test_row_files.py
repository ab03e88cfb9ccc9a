"""Files of rows: WebDataset's tars; what other libraries alone read is refused with the way to pack it."""

import io
from pathlib import Path

import pytest
from PIL import Image

from loaders import ShardDataset
from loaders.errors import SourceError
from packdata.cli import main
from tests.packdata.test_sources import write_tar
from tests.packdata.test_tokens import pack

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a.mds", "from_mds.py"),
        ("a.mds.zstd", "from_mds.py"),
        ("train.tfrecord-00000-of-00010", "from_tfrecord.py"),
        ("train-images-idx3-ubyte", "docs/images.md"),
        ("t10k-labels.idx1-ubyte.gz", "docs/images.md"),
    ],
)
def test_a_file_of_another_format_is_refused_with_the_way_to_pack_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    source = tmp_path / "in" / name
    source.parent.mkdir()
    source.write_bytes(bytes(64))

    for command in ("tokens", "images", "tables", "arrays"):
        assert main([command, str(source), str(tmp_path / "p")]) == 1
        assert way in capsys.readouterr().err
    for command in ("images", "arrays"):
        assert main([command, str(source.parent), str(tmp_path / "p")]) == 1
        assert way in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_a_folder_of_another_library_is_refused_and_its_chunks_are_no_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for command in ("tokens", "images", "tables"):
        assert main([command, str(FOREIGN / name), str(tmp_path / "p")]) == 1
        assert f"from_{name}.py" in capsys.readouterr().err


def test_texts_in_tars_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"one"})
    with pytest.raises(SourceError) as caught:
        pack(path, tmp_path / "p")
    assert caught.value.path == path


def test_pictures_of_a_tar_are_packed_with_class_names(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (4, 3)).save(picture, "PNG")
    path = write_tar(tmp_path / "a.tar", {"1.png": picture.getvalue(), "1.cls": b"dog"})

    assert main(["images", str(path), str(tmp_path / "p")]) == 0

    (sample,) = ShardDataset(tmp_path / "p", fields=["label"])
    assert int(sample.label) == 0
