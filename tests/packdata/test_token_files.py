"""Files of ids by their headers and sizes, and text where ids are expected."""

import gzip
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from loaders.errors import SourceError
from packdata.tokens.options import TokenOptions
from packdata.tokens.plan import plan_tokens
from tests.packdata.test_tokens import documents, pack, texts, write
from tests.refusals import At

IDS = np.array([50256, 40, 716, 257, 50256, 3290, 13], np.int64)


def llmc(ids: Any, magic: int = 20240520, dtype: str = "<u2") -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(ids)
    return header.tobytes() + np.asarray(ids, dtype).tobytes()


@pytest.mark.parametrize("suffix", ["npy", "bin"])
def test_no_file_stays_open_between_its_reads(tmp_path: Path, suffix: str) -> None:
    """Else a corpus of more files than a process may open is none."""
    for number in range(40):
        write(tmp_path / f"src/{number}.bin", np.array([number, 9], "<u2").tobytes())
        if suffix == "npy":
            (tmp_path / f"src/{number}.bin").unlink()
            np.save(tmp_path / f"src/{number:02}.npy", np.array([number, 9], "<u2"))
    before = len(os.listdir("/proc/self/fd"))

    plan = plan_tokens(tmp_path / "src")

    assert len(os.listdir("/proc/self/fd")) < before + 10
    assert len(plan.recipe.source.files) == 40
    assert len(documents(pack(tmp_path / "src", tmp_path / "p"))) == 40


def test_two_of_many_compressed_files_are_unpacked_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        write(tmp_path / f"{number}.csv.gz", gzip.compress(b"text\n" + b"word\n" * number))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    plan = plan_tokens(sorted(tmp_path.glob("*.gz")), TokenOptions())
    read = [len(piece.read()) for piece in plan.recipe.source.pieces()]

    assert sum(read) == 15
    assert len(list((tmp_path / "tmp").iterdir())) <= 2


# -- read ------------------------------------------------------------------------------------------


def test_files_of_llmc_and_modded_nanogpt_are_read_behind_their_header(tmp_path: Path) -> None:
    write(tmp_path / "src/a.bin", llmc(IDS))
    write(tmp_path / "src/b.bin", llmc([128_000, 7], 20240801, "<u4"))

    folder = pack(tmp_path / "src", tmp_path / "p")

    assert documents(folder) == [IDS.tolist(), [128_000, 7]]
    assert documents(pack(tmp_path / "src/a.bin", tmp_path / "q", eod=50256)) == [
        [50256],
        [40, 716, 257, 50256],
        [3290, 13],
    ]


@pytest.mark.parametrize(
    "data",
    [
        llmc(IDS)[:-2],
        llmc(IDS) + b"\0\0",
        llmc(IDS)[:600],
        llmc(IDS, dtype="<u4"),
    ],
)
def test_a_header_of_llmc_that_does_not_fit_its_file_is_refused(
    tmp_path: Path, data: bytes
) -> None:
    source = write(tmp_path / "a.bin", data)

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p")

    assert caught.value.path == source


def test_a_file_of_megatron_without_its_index_is_refused(tmp_path: Path) -> None:
    """Its documents would be one, in silence."""
    ids = write(tmp_path / "corpus_text_document.bin", np.arange(9, dtype="<u2").tobytes())

    with pytest.raises(SourceError, check=At("corpus_text_document.bin")):
        pack(ids, tmp_path / "p")
    ids.rename(tmp_path / "corpus.bin")
    assert documents(pack(tmp_path / "corpus.bin", tmp_path / "p")) == [list(range(9))]


def test_plain_ids_that_are_called_npy_are_read_as_the_type_that_is_given(tmp_path: Path) -> None:
    source = write(tmp_path / "part-0.npy", IDS.astype("<u2").tobytes())

    with pytest.raises(SourceError, check=At(source)) as caught:
        pack(source, tmp_path / "p")
    assert "bin_dtype=" in caught.value.hint
    assert documents(pack(source, tmp_path / "p", bin_dtype="uint16")) == [IDS.tolist()]


def test_ids_of_llmc_that_are_called_npy_are_read_behind_their_header(tmp_path: Path) -> None:
    source = write(tmp_path / "train.npy", llmc(IDS))

    assert documents(pack(source, tmp_path / "p")) == [IDS.tolist()]


def test_an_array_with_a_header_is_not_read_as_another_type(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IDS.astype(np.int32))

    with pytest.raises(SourceError, check=At("a.npy")):
        pack(tmp_path / "a.npy", tmp_path / "p", bin_dtype="uint16")


def test_a_header_that_cannot_be_parsed_is_an_error_of_its_file(tmp_path: Path) -> None:
    write(
        tmp_path / "a.npy",
        b"\x93NUMPY\x01\x00\x20\x00{'descr': '<u2', 'shape': (20,   " + bytes(40),
    )

    with pytest.raises(SourceError, check=At("a.npy")):
        pack(tmp_path / "a.npy", tmp_path / "p")


@pytest.mark.parametrize("ids", ["token_ids_part_0000.npy", "train.bin"])
def test_masks_in_files_beside_ids_are_refused_not_packed_as_ids(tmp_path: Path, ids: str) -> None:
    """As those of OLMo-core's fine-tuning: its converter writes them beside the ids."""
    masks = {"token_ids_part_0000.npy": "labels_mask_part_0000.npy", "train.bin": "train-mask.bin"}
    source = write(tmp_path / "in" / ids, IDS.astype("<u2").tobytes())
    mask = write(tmp_path / "in" / masks[ids], bytes(len(IDS) * 2))

    with pytest.raises(SourceError) as caught:
        pack(tmp_path / "in", tmp_path / "p", bin_dtype="uint16")

    assert mask.name in caught.value.what
    if source.suffix == ".npy":
        with pytest.raises(SourceError, check=At(source)):
            pack(source, tmp_path / "p", bin_dtype="uint16")
    mask.rename(tmp_path / "masked.npy")
    assert documents(pack(source, tmp_path / "p", bin_dtype="uint16")) == [IDS.tolist()]


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["plain ascii".encode("utf-16-le"), bytes([1, 0, 2, 0] * 9)])
def test_utf16_and_ids_that_are_utf8_by_chance_are_not_text(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, check=At("a.txt, line 1")):
        pack(write(tmp_path / "a.txt", data), tmp_path / "p")

    write(tmp_path / "b.txt", "a NUL \0 among other characters is text")
    assert texts(pack(tmp_path / "b.txt", tmp_path / "q"))[0][6] == "\0"


@pytest.mark.parametrize("text", ["First Citizen: ä\n" * 4, '{"text": "a line of JSON"}\n' * 2000])
@pytest.mark.parametrize("options", [{}, {"bin_dtype": "uint32"}])
def test_text_called_bin_is_not_read_as_ids_wider_than_bytes(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    source = write(tmp_path / "a.bin", text)

    with pytest.raises(SourceError, check=At("a.bin")):
        pack(source, tmp_path / "p", **options)
    assert documents(pack(source, tmp_path / "p", bin_dtype="uint8")) == [[*text.encode()]]


@pytest.mark.parametrize("dtype", ["<i4", "<u4", "<i8"])
@pytest.mark.parametrize("most", [100, 50_000, 150_000])
def test_wide_ids_are_not_read_as_narrow_ones(tmp_path: Path, dtype: str, most: int) -> None:
    ids = np.random.default_rng(0).integers(0, most, 200)
    source = write(tmp_path / "a.bin", ids.astype(dtype).tobytes())

    with pytest.raises(SourceError, check=At("a.bin")):
        pack(source, tmp_path / "p")
    wide = {"<i4": "int32", "<u4": "uint32", "<i8": "int64"}[dtype]
    assert documents(pack(source, tmp_path / "p", bin_dtype=wide)) == [ids.tolist()]


@pytest.mark.parametrize("most", [2, 5, 65, 256, 50_257, 65_536])
def test_plain_ids_of_any_vocabulary_are_not_taken_for_something_else(
    tmp_path: Path, most: int
) -> None:
    ids = np.random.default_rng(0).integers(0, most, 4000).astype("<u2")

    assert documents(pack(write(tmp_path / "a.bin", ids.tobytes()), tmp_path / "p")) == [
        ids.tolist()
    ]


# -- JSON lines by another name --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c4.json", "c4.json.gz", "c4.json.zst"])
def test_json_lines_called_json_are_read(tmp_path: Path, name: str) -> None:
    lines = b'{"text": "one"}\n{"text": "two", "url": "x"}\n'
    made = {"gz": gzip.compress(lines), "zst": zstandard.compress(lines), "json": lines}

    source = write(tmp_path / "src" / name, made[name.rsplit(".", 1)[1]])

    assert texts(pack(source, tmp_path / "p")) == ["one", "two"]
    if name != "c4.json":  # beside other data a plain one is often no data
        assert texts(pack(source.parent, tmp_path / "q")) == ["one", "two"]


@pytest.mark.parametrize("data", ['[{"text": "a"}]', "x"])
def test_other_json_is_refused(tmp_path: Path, data: str) -> None:
    source = write(tmp_path / "a.json", data)

    with pytest.raises(SourceError, check=At("a.json, line 1")):
        pack(source, tmp_path / "p")
