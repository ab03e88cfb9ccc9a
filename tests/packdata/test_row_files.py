"""Files of rows that other libraries wrote: MDS of MosaicML Streaming, LitData, TFRecord, WebDataset."""

import io
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from PIL import Image

from loaders import ShardDataset
from loaders.errors import SourceError
from packdata.cli import main
from packdata.sources import mds
from packdata.sources.row_kinds import listed_files, open_row_file
from packdata.sources.tfrecord import masked_crc32c
from packdata.tables import pack_tables
from tests.packdata.test_sources import write_tar
from tests.packdata.test_tokens import documents, pack, texts
from tests.refusals import At

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
TFRECORD = FOREIGN / "example.tfrecord"
TEXTS = [f"größe {i}" for i in range(3)]


def rows_of(folder: Path) -> list[dict[str, object]]:
    """Return the rows that an index lists."""
    files = listed_files(folder, [path.name for path in folder.iterdir()])
    assert files is not None
    opened = [open_row_file(file) for file in files]
    return [
        row
        for file in opened
        for group in range(len(file.groups))
        for row in file.read(group, file.schema.names).to_pylist()
    ]


def pixels(data: object) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    assert isinstance(data, bytes)
    return np.asarray(Image.open(io.BytesIO(data)))


# -- MDS -------------------------------------------------------------------------------------------


def test_samples_of_mds_come_back_as_they_were_written() -> None:
    rows = rows_of(FOREIGN / "mds")

    assert len(rows) == 3
    for i, row in enumerate(rows):
        assert pixels(row.pop("picture")).shape == (2, 3 + i, 3)
        assert (pixels(row.pop("mask")) == i).all()
        assert row == {
            "label": i - 1,
            "text": TEXTS[i],
            "raw": bytes([i, 0, 255]),
            "f": i / 3,
            "u": 200 + i,
            "js": json.dumps({"a": [i]}),
            "tokens": list(range(500, 501 + i)),
            "vec": [i, 0.5],
            "n": 10**10 + i,
            "free": list(range(i + 2)),
        }


@pytest.mark.parametrize("how", ["zstd", "gz", "br"])
def test_compressed_shards_are_read(how: str) -> None:
    assert [row["text"] for row in rows_of(FOREIGN / f"mds-{how}")] == TEXTS


def test_pictures_of_mds_are_packed_verbatim_with_their_masks(tmp_path: Path) -> None:
    source = str(FOREIGN / "mds")

    assert main(["images", source, str(tmp_path / "p"), "--image-column", "picture"]) == 0

    dataset = ShardDataset(tmp_path / "p")
    assert [int(sample.label) for sample in dataset] == [-1, 0, 1]
    for row, sample in zip(rows_of(FOREIGN / "mds"), dataset, strict=True):
        assert (sample.image.numpy() == pixels(row["picture"]).transpose(2, 0, 1)).all()
        assert (sample.mask.numpy() == pixels(row["mask"])).all()


@pytest.mark.parametrize("name", ["mds-pil", "litdata-pil"])
def test_pictures_that_are_kept_as_their_pixels_are_packed(tmp_path: Path, name: str) -> None:
    """Of colours, of gray, and of colours with alpha."""
    assert main(["images", str(FOREIGN / name), str(tmp_path / "p")]) == 0

    samples = list(ShardDataset(tmp_path / "p"))
    assert [int(sample.label) for sample in samples] == [0, 1, 2]
    for i, (sample, mode) in enumerate(zip(samples, ("RGB", "L", "RGBA"), strict=True)):
        drawn = np.random.default_rng(i).integers(0, 255, (3, 4 + i, 4), dtype=np.uint8)
        picture = Image.fromarray(drawn).convert(mode)
        assert (pixels(rows_of(FOREIGN / name)[i]["image"]) == np.asarray(picture)).all()
        if mode != "RGBA":
            expected = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
            assert (sample.image.numpy() == expected).all()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<3I", 2, 2, 3) + b"RGB" + bytes(11),
        struct.pack("<3I", 1 << 31, 1 << 31, 3) + b"RGB",
        struct.pack("<3I", 2, 2, 1) + b"P" + bytes(4),
        struct.pack("<3I", 2, 2, 1) + b"\xff" + bytes(4),
        struct.pack("<3I", 0, 0, 3) + b"RGB",
        b"ab",
        b"",
    ],
    ids=["short", "huge", "a palette", "no text", "no pixels", "no head", "empty"],
)
def test_pixels_that_make_no_picture_are_refused_with_their_row(data: bytes) -> None:
    kept = struct.pack("<I", len(data)) + data
    _, decode = mds.DECODERS["pil"]

    with pytest.raises(SourceError, check=At("a.mds, row 7")):
        mds.decode_sample(kept, [("image", decode, None)], "a.mds, row 7")


def test_texts_and_ids_of_mds_are_packed(tmp_path: Path) -> None:
    ids = pack(FOREIGN / "mds", tmp_path / "ids", ids_column="tokens")

    assert documents(ids) == [[500], [500, 501], [500, 501, 502]]
    assert texts(pack(FOREIGN / "mds-gz", tmp_path / "texts")) == TEXTS
    assert texts(pack(FOREIGN / "mds-zstd/shard.00000.mds.zstd", tmp_path / "one")) == TEXTS


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        pack(FOREIGN / "mds-pickle", tmp_path / "p")


def test_shards_that_are_compressed_in_another_way_are_named(tmp_path: Path) -> None:
    source = Path(shutil.copytree(FOREIGN / "mds-zstd", tmp_path / "mds"))
    (shard,) = source.glob("*.zstd")
    moved = shard.rename(shard.with_suffix(".snappy"))
    index = source / "index.json"
    index.write_text(
        index.read_text().replace(".mds.zstd", ".mds.snappy").replace("zstd", "snappy")
    )

    for command in ("tokens", "images"):
        assert main([command, str(source), str(tmp_path / "p")]) == 1
    with pytest.raises(SourceError, check=At("mds/shard.00000.mds.snappy")) as caught:
        pack(source, tmp_path / "p")

    assert caught.value.path == moved


@pytest.mark.parametrize(
    "damage", ["cut", "longer", "lost", "offsets", "version", "head", "names"]
)
def test_damaged_mds_is_refused_with_its_file(tmp_path: Path, damage: str) -> None:
    source = Path(shutil.copytree(FOREIGN / "mds", tmp_path / "mds"))
    shard = source / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(data[:-1])
    elif damage == "longer":
        shard.write_bytes(data + b"\0")
    elif damage == "lost":
        shard.unlink()
    elif damage == "offsets":
        data[5] ^= 0xFF
        shard.write_bytes(data)
    elif damage == "head":
        shard.write_bytes(data[:3])
    elif damage == "names":
        shard.write_bytes(data.replace(b'"column_names"', b'"column_games"'))
    else:
        index = json.loads((source / "index.json").read_text())
        (source / "index.json").write_text(json.dumps(index | {"version": 3}))

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p", text_column="text")

    assert caught.value.path == (source / "index.json" if damage == "version" else shard)


def test_a_beton_of_ffcv_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "train.beton"
    source.write_bytes(bytes(64))

    for command in ("tokens", "images", "tables", "arrays"):
        assert main([command, str(source), str(tmp_path / "p")]) == 1
        error = capsys.readouterr().err
        assert "FFCV" in error
        assert "packdata.Writer" in error


# -- TFRecord --------------------------------------------------------------------------------------


def test_examples_come_back_as_they_were_written() -> None:
    file = open_row_file(TFRECORD)
    rows = file.read(0, file.schema.names).to_pylist()

    for i, row in enumerate(rows):
        assert pixels(row.pop("image/encoded")).shape == (2, 3 + i, 3)
        assert row == {
            "image/class/label": i - 1,
            "text": TEXTS[i],
            "input_ids": list(range(i + 1)),
            "score": i / 2,
        }
    assert len(rows) == 3


def test_pictures_and_ids_of_tfrecord_are_packed(tmp_path: Path) -> None:
    source = Path(shutil.copy(TFRECORD, tmp_path / "train.tfrecord-00000-of-00001"))

    assert main(["images", str(source), str(tmp_path / "p")]) == 0

    assert [sample.image.shape[2] for sample in ShardDataset(tmp_path / "p")] == [3, 4, 5]
    assert documents(pack(source, tmp_path / "q")) == [[0], [0, 1], [0, 1, 2]]
    assert texts(pack(source, tmp_path / "r", text_column="text")) == TEXTS


def message(number: int, *parts: bytes) -> bytes:
    """Return a field of a protocol buffer that is a message, a text or bytes."""
    data = b"".join(parts)
    return bytes([number << 3 | 2, len(data)]) + data


def write_tfrecord(path: Path, *records: bytes) -> None:
    with open(path, "wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            crcs = [struct.pack("<I", masked_crc32c(each)) for each in (length, data)]
            file.write(length + crcs[0] + data + crcs[1])


FIVE = bytes([1 << 3, 5])  # field 1 as a whole number


@pytest.mark.parametrize(
    "record",
    [
        FIVE,
        message(1, FIVE),
        message(1, message(1, FIVE)),
        message(1, message(1, message(2))),
        message(1, message(1, message(1, b"a"), message(2, message(2, FIVE)))),
    ],
)
def test_records_of_another_message_are_refused_with_their_row(
    tmp_path: Path, record: bytes
) -> None:
    """Such as ``message Click {int64 id = 1;}``."""
    source = tmp_path / "clicks.tfrecord"
    write_tfrecord(source, record)

    with pytest.raises(SourceError, check=At(f"{source}, row 0")):
        pack_tables(source, tmp_path / "p")


def test_a_feature_of_two_types_is_refused_with_its_rows(tmp_path: Path) -> None:
    values = message(1, message(1, b"five")), message(3, message(1, bytes([5])))
    records = [message(1, message(1, message(1, b"a"), message(2, each))) for each in values]
    source = tmp_path / "mixed.tfrecord"
    write_tfrecord(source, *records)

    with pytest.raises(SourceError, check=At(f"{source}, rows 0 to 1")):
        pack_tables(source, tmp_path / "p")


def test_a_sequence_example_is_refused(tmp_path: Path) -> None:
    """Its second field looks like features on the wire: text came back with the bytes of a message before it."""

    def features(values: bytes) -> bytes:
        return message(1, message(1, b"text"), message(2, values))

    words = message(1, message(1, b"hello"))
    context, lists = message(1, features(words)), message(2, features(message(1, words)))
    for name, data in (("plain", context), ("empty", context + message(2)), ("lists", lists)):
        write_tfrecord(tmp_path / f"{name}.tfrecord", data)

    for name in ("plain", "empty"):
        pack_tables(tmp_path / f"{name}.tfrecord", tmp_path / name)
        assert ShardDataset(tmp_path / name).to_pandas()["text"].tolist() == ["hello"]
    with pytest.raises(SourceError, check=At(f"{tmp_path}/lists.tfrecord, row 0")):
        pack_tables(tmp_path / "lists.tfrecord", tmp_path / "lists")


@pytest.mark.parametrize("change", ["cut", "length", "checksum", "empty"])
def test_a_damaged_tfrecord_is_refused_with_its_file(tmp_path: Path, change: str) -> None:
    data = bytearray(TFRECORD.read_bytes())
    if change == "length":
        data[0] ^= 1
    if change == "checksum":
        data[9] ^= 1
    source = tmp_path / "a.tfrecord"
    source.write_bytes({"cut": bytes(data[:-1]), "empty": b""}.get(change, bytes(data)))

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p")

    assert caught.value.path == source


# -- LitData ---------------------------------------------------------------------------------------


def test_items_of_litdata_come_back_as_they_were_written() -> None:
    for i, row in enumerate(rows_of(FOREIGN / "litdata")):
        assert pixels(row.pop("image")).shape == (2, 3 + i, 3)
        assert row == {"label": i - 1, "text": TEXTS[i], "ids": list(range(i + 1))}


def test_pictures_texts_and_ids_of_litdata_are_packed(tmp_path: Path) -> None:
    source = FOREIGN / "litdata"

    assert main(["images", str(source), str(tmp_path / "p")]) == 0

    dataset = ShardDataset(tmp_path / "p")
    assert [int(sample.label) for sample in dataset] == [-1, 0, 1]
    for row, sample in zip(rows_of(source), dataset, strict=True):
        assert (sample.image.numpy() == pixels(row["image"]).transpose(2, 0, 1)).all()
    assert texts(pack(source, tmp_path / "q")) == TEXTS
    assert documents(pack(source, tmp_path / "r", ids_column="ids")) == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("name", ["litdata-arrow", "litdata-arrow-zstd"])
def test_rows_that_litdata_keeps_as_arrow_are_read(name: str) -> None:
    expected = [{"number": i - 3, "share": i / 4, "text": "abc" * i + "é"} for i in range(7)]
    assert rows_of(FOREIGN / name) == expected


@pytest.mark.parametrize("at", [-14, -10, -5])
def test_damaged_arrow_of_litdata_is_refused_with_its_file(tmp_path: Path, at: int) -> None:
    source = Path(shutil.copytree(FOREIGN / "litdata-arrow", tmp_path / "lit"))
    chunk = source / "chunk-0-1.bin"
    data = bytearray(chunk.read_bytes())
    data[at] ^= 0xFF
    chunk.write_bytes(data)

    with pytest.raises(SourceError) as caught:
        rows_of(source)

    assert caught.value.path == chunk


@pytest.mark.parametrize("named", ["", "index.json"])
def test_tokens_of_litdata_are_a_document_an_item(tmp_path: Path, named: str) -> None:
    folder = pack(FOREIGN / "litdata-tokens" / named, tmp_path / "p")

    assert documents(folder) == [[500, 501], [500, 501, 502], [500, 501, 502, 503]]


def test_compressed_chunks_of_litdata_are_read(tmp_path: Path) -> None:
    source = Path(shutil.copytree(FOREIGN / "litdata-tokens", tmp_path / "lit"))
    for chunk in source.glob("*.bin"):
        chunk.write_bytes(zstandard.compress(chunk.read_bytes()))
    index = json.loads((source / "index.json").read_text())
    index["config"]["compression"] = "zstd"
    for chunk, size in zip(index["chunks"], (2, 1), strict=True):
        chunk["chunk_size"] = size
    (source / "index.json").write_text(json.dumps(index))

    assert len(documents(pack(source, tmp_path / "p"))) == 3


@pytest.mark.parametrize(
    "damage", ["cut", "lost", "empty", "offsets", "pickle", "encrypted", "config"]
)
def test_damaged_litdata_is_refused_with_its_file(tmp_path: Path, damage: str) -> None:
    source = Path(shutil.copytree(FOREIGN / "litdata", tmp_path / "lit"))
    (chunk,), where = source.glob("*.bin"), source / "index.json"
    data, index = bytearray(chunk.read_bytes()), json.loads(where.read_text())
    if damage in ("cut", "offsets"):
        data[5] ^= damage == "offsets"
        chunk.write_bytes(data[: -1 if damage == "cut" else None])
    elif damage == "lost":
        chunk.unlink()
    elif damage == "empty":
        chunk.write_bytes(b"")
    elif damage == "pickle":
        index["config"]["data_format"][2] = "pickle"
    elif damage == "encrypted":
        index["config"]["encryption"] = {"algorithm": "fernet"}
    else:
        index["config"]["data_format"] = None
    where.write_text(json.dumps(index))

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p", text_column="text")

    assert caught.value.path == (where if damage in ("pickle", "encrypted", "config") else chunk)


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("mds", "f", [0, 1 / 3, 2 / 3]),
        ("litdata", "label", [-1, 0, 1]),
        ("example.tfrecord", "score", [0, 0.5, 1]),
    ],
)
def test_numbers_are_packed_as_tables(
    tmp_path: Path, name: str, column: str, expected: list[float]
) -> None:
    source = str(FOREIGN / name)

    assert main(["tables", source, str(tmp_path / "p"), "--features", column]) == 0

    found = [float(sample.features[0]) for sample in ShardDataset(tmp_path / "p")]
    assert found == pytest.approx(expected)


def test_only_what_an_index_lists_is_a_table_and_nothing_beside_it_is_told(tmp_path: Path) -> None:
    """A cache of Streaming may hold each shard twice, compressed and not: rows came twice."""
    source = Path(shutil.copytree(FOREIGN / "mds-zstd", tmp_path / "mds"))
    (shard,) = source.glob("*.zstd")
    shard.with_suffix("").write_bytes(zstandard.decompress(shard.read_bytes(), 1 << 20))
    (source / "more").mkdir()

    summary = pack_tables(source, tmp_path / "p", features=["label"])

    assert (summary.samples, summary.notes) == (3, ("passed over: 1 folder",))


# -- WebDataset ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_texts_ids_and_columns_of_tars_are_documents(tmp_path: Path, name: str) -> None:
    members = {"1.txt": "größe".encode(), "1.json": b'{"n": 1, "ids": [1, 2]}', "2.txt": b"two"}
    members |= {"2.json": b'{"n": 2, "ids": [3]}', "3.png": b"x"}
    (tmp_path / "src").mkdir()
    path = write_tar(tmp_path / "src" / name, members, "w:gz" if name.endswith("gz") else "w")

    assert texts(pack(path, tmp_path / "p")) == ["größe", "two"]
    assert texts(pack(path.parent, tmp_path / "q")) == ["größe", "two"]
    assert documents(pack(path, tmp_path / "r", ids_column="ids")) == [[1, 2], [3]]


def test_tars_without_a_text_or_with_a_bad_one_are_refused(tmp_path: Path) -> None:
    for members in ({"1.png": b"x"}, {"1.txt": b"\xff"}, {"1.json": b"{"}):
        path = write_tar(tmp_path / "a.tar", members)
        with pytest.raises(SourceError) as caught:
            pack(path, tmp_path / "p")
        assert str(caught.value.path).startswith(str(path))


def test_pictures_of_a_tar_are_packed_with_class_names_and_arrays(tmp_path: Path) -> None:
    array, file = np.arange(6, dtype=np.float32).reshape(2, 3), io.BytesIO()
    np.save(file, array)
    picture = io.BytesIO()
    Image.new("RGB", (4, 3)).save(picture, "PNG")
    members = {"1.png": picture.getvalue(), "1.cls": b"dog", "1.emb.npy": file.getvalue()}
    path = write_tar(tmp_path / "a.tar", members)

    assert main(["images", str(path), str(tmp_path / "p")]) == 0

    (sample,) = ShardDataset(tmp_path / "p", fields=["label", "emb"])
    assert int(sample.label) == 0
    assert (sample.emb.numpy() == array).all()
