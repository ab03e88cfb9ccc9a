import copy
import io
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders import Denormalize, Normalize
from loaders.device.normalize import IMAGENET_MEAN, IMAGENET_STD
from loaders.errors import BatchError

# Half an ulp of the result for the last rounding; float32's own error where that is the result.
TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-6,
    torch.float16: 2.0**-11 + 1e-6,
    torch.bfloat16: 2.0**-8 + 1e-6,
}
DTYPES = list(TOLERANCE)


def reference(images: torch.Tensor, mean: Any, std: Any) -> npt.NDArray[np.float64]:
    """Return (x - mean) / std in float64, by numpy, one channel at a time."""
    pixels = images.numpy().astype(np.float64)
    result = np.empty_like(pixels)
    for c, (m, s) in enumerate(zip(mean, std, strict=True)):
        at = (c,) if pixels.ndim == 3 else (slice(None), c)
        result[at] = (pixels[at] - m) / s
    return result


def some_images(*shape: int, dtype: torch.dtype = torch.uint8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    high = {torch.uint8: 256, torch.uint16: 65536, torch.int8: 128}.get(dtype, 1000)
    return torch.randint(0, high, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (3, 5, 7), (2, 3, 4, 5, 7), (0, 3, 5, 7), (2, 3, 0, 7), (1, 3, 1, 1)]
)
def test_it_equals_the_formula(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    images = some_images(*shape)

    found = Normalize(IMAGENET_MEAN, IMAGENET_STD, dtype)(images)

    assert found.dtype == dtype
    assert found.shape == images.shape
    expected = reference(images, IMAGENET_MEAN, IMAGENET_STD)
    np.testing.assert_allclose(
        found.double().numpy(), expected, rtol=TOLERANCE[dtype], atol=1e-5 * (dtype != torch.float64) + 1e-6
    )  # fmt: skip


@given(
    channels=st.integers(1, 6),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_it_equals_the_formula_for_any_statistics(
    channels: int, seed: int, data: st.DataObject
) -> None:
    numbers = st.lists(st.floats(2, 255, width=32), min_size=channels, max_size=channels)
    mean, std = data.draw(numbers), data.draw(numbers)
    images = some_images(2, channels, 3, 4, seed=seed)

    found = Normalize(mean, std)(images)

    np.testing.assert_allclose(found.numpy(), reference(images, mean, std), rtol=1e-6, atol=1e-6)


def test_every_pixel_value_is_rounded_once() -> None:
    """The nearest number of the result's dtype, up to the float32 arithmetic before it."""
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)

    for dtype in (torch.float16, torch.bfloat16):
        found = Normalize([123.675], [58.395], dtype)(images)
        exact = (images.double() - 123.675) / 58.395
        wide = ((images.float() - 123.675) / 58.395).to(dtype)
        assert torch.equal(found, wide)
        error = (found.double() - exact).abs() / exact.abs().clamp(min=1e-3)
        assert error.max() < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64],
    ids=str,
)
def test_whole_numbers_of_any_size_are_taken(dtype: torch.dtype) -> None:
    images = some_images(2, 1, 5, 7, dtype=dtype)
    before = images.clone()

    found = Normalize([30.0], [7.0])(images)

    np.testing.assert_allclose(
        found.numpy(), reference(images, [30.0], [7.0]), rtol=1e-6, atol=1e-5
    )
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 4, 4),
        torch.zeros(2, 3, 4, 4, dtype=torch.float16),
        torch.zeros(2, 3, 4, 4, dtype=torch.bool),
        torch.zeros(2, 3, 4, 4, dtype=torch.complex64),
        torch.zeros(2, 4, 4, 3, dtype=torch.uint8),
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(3, dtype=torch.uint8),
        torch.zeros((), dtype=torch.uint8),
        torch.zeros(1, 1, 2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
    ],
    ids=lambda images: f"{images.dtype} {tuple(images.shape)}",
)
def test_what_is_no_batch_of_images_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(BatchError):
        Normalize.imagenet()(images)


@pytest.mark.parametrize(
    ("mean", "std", "options"),
    [
        ([], [], {}),
        ([1.0], [2.0, 3.0], {}),
        ([100.0], [0.0], {}),
        ([100.0], [-1.0], {}),
        ([100.0], [math.nan], {}),
        ([math.nan], [50.0], {}),
        ([100.0], [math.inf], {}),
        ([-math.inf], [50.0], {}),
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], {}),  # of 0 to 1, which is to be said
        ([0.5], [0.5], {}),
        ([0.0], [1.0], {}),
        ([100.0], [50.0], {"dtype": torch.uint8}),
        ([100.0], [50.0], {"max_value": 2}),
        ([120.0], [0.5], {"max_value": 1}),
        ([0.5], [50.0], {"max_value": 1}),
        ([100.0], [50.0], {"memory_format": torch.preserve_format}),
        ([100.0], [50.0], {"memory_format": torch.channels_last_3d}),
    ],
    ids=str,
)
def test_statistics_that_make_no_sense_are_refused(
    mean: list[float], std: list[float], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        Normalize(mean, std, **options)


def test_statistics_of_0_to_1_are_taken_when_said_so() -> None:
    images = some_images(2, 3, 4, 4)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    found = Normalize(mean, std, max_value=1)(images)

    torch.testing.assert_close(found, Normalize.imagenet()(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int64])
def test_statistics_of_0_to_1_are_scaled_for_uint8_and_refuse_the_rest(dtype: torch.dtype) -> None:
    normalize = Normalize([0.5], [0.2], max_value=1)
    images = torch.full((1, 2, 2), 255, dtype=torch.uint8)

    assert normalize(images)[0, 0, 0].item() == pytest.approx(2.5)
    for each in (normalize, Normalize([0.5] * 3, [0.2] * 3, max_value=1), Normalize.imagenet()):
        with pytest.raises(BatchError):
            each(images.expand(len(each.mean), 2, 2).to(dtype))
    Denormalize([0.5], [0.2], torch.uint8, max_value=1)
    with pytest.raises(ValueError):
        Denormalize([0.5], [0.2], torch.uint16, max_value=1)


@pytest.mark.parametrize("max_value", [255, 65535])
def test_small_statistics_in_pixel_units_are_taken_when_said_so(max_value: int) -> None:
    images = some_images(1, 1, 4, 4)

    found = Normalize([0.0], [1.0], max_value=max_value)(images)

    assert torch.equal(found, images.float())


def test_imagenet_is_torchvisions_times_255() -> None:
    np.testing.assert_allclose(IMAGENET_MEAN, np.array([0.485, 0.456, 0.406]) * 255)
    np.testing.assert_allclose(IMAGENET_STD, np.array([0.229, 0.224, 0.225]) * 255)
    module = Normalize.imagenet(torch.bfloat16, torch.channels_last)
    assert (module.dtype, module.memory_format) == (torch.bfloat16, torch.channels_last)
    assert module.mean.tolist() == torch.tensor(IMAGENET_MEAN).tolist()


# -- memory order ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "images",
    [
        some_images(2, 3, 5, 7),
        some_images(2, 3, 5, 7).contiguous(memory_format=torch.channels_last),
        some_images(5, 7, 3).permute(2, 0, 1),
        some_images(2, 4, 5, 7, 3).permute(0, 4, 1, 2, 3),
    ],
    ids=lambda images: str((tuple(images.shape), images.stride())),
)
def test_the_memory_order_is_kept_or_what_was_asked_for(images: torch.Tensor) -> None:
    kept, plain, last = (
        Normalize.imagenet(memory_format=order)
        for order in (None, torch.contiguous_format, torch.channels_last)
    )

    assert kept(images).stride() == images.stride()
    assert plain(images).is_contiguous()
    assert last(images).movedim(-3 if images.dim() < 5 else 1, -1).is_contiguous()
    assert torch.equal(plain(images), kept(images))
    assert torch.equal(last(images), kept(images))


@pytest.mark.parametrize("memory_format", [None, torch.contiguous_format, torch.channels_last])
def test_views_of_batches_are_taken(memory_format: torch.memory_format | None) -> None:
    batch = some_images(6, 3, 8, 8)
    module = Normalize.imagenet(memory_format=memory_format)
    whole = module(batch)

    for view in (slice(None, None, 2), slice(3, 3), slice(5, None)):
        assert torch.equal(module(batch[view]), whole[view])
    assert torch.equal(module(batch[:, :, 2:7, ::3]), whole[:, :, 2:7, ::3])
    assert torch.equal(module(batch[:1].expand(4, 3, 8, 8)), whole[:1].expand(4, 3, 8, 8))
    flipped = module(batch.flip(-1))
    assert torch.equal(flipped, whole.flip(-1))


def test_the_result_is_new_memory() -> None:
    images = some_images(1, 1, 4, 4, dtype=torch.int32)

    found = Normalize([50.0], [2.0])(images)
    found.zero_()

    assert images.any()


# -- from_stats --------------------------------------------------------------------------------

STATS = {"image": "image", "mean": [120.0, 110.0], "std": [60.0, 50.0], "max_value": 255}


def test_it_is_made_from_what_packdata_prints(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(STATS | {"fields": {}, "num_samples": 5}))

    for stats in (STATS, path, str(path)):
        module = Normalize.from_stats(stats, torch.float16, torch.channels_last)
        assert module.mean.tolist() == [120.0, 110.0]
        assert module.std.tolist() == [60.0, 50.0]
        assert (module.dtype, module.memory_format) == (torch.float16, torch.channels_last)


@pytest.mark.parametrize("max_value", [255, 65535])
def test_statistics_that_packdata_measured_are_in_pixel_units_of_its_images_however_small(
    max_value: int,
) -> None:
    """Images of zeros and ones have them; nobody has scaled anything. Those of other bits are refused.

    Those of 16 bits may be held in more.
    """
    module = Normalize.from_stats({"mean": [0.2], "std": [0.4], "max_value": max_value})
    one, dtypes = torch.ones(1, 1, 1, 1), [torch.uint8, torch.uint16]
    right, wrong = dtypes if max_value == 255 else dtypes[::-1]

    for dtype in (right, *[torch.int32, torch.int64] * (max_value == 65535)):
        torch.testing.assert_close(module(one.to(dtype)), one * 2)
    assert Denormalize.of(module, right)(one * 2).item() == 1
    with pytest.raises(BatchError):
        module(one.to(wrong))
    with pytest.raises(ValueError):
        Denormalize.of(module, wrong)


def test_statistics_of_unknown_units_are_checked() -> None:
    with pytest.raises(ValueError):
        Normalize.from_stats({"mean": [0.2], "std": [0.4]})


def test_statistics_of_volumes_are_those_of_their_field() -> None:
    scan = {"kind": "array", "mean": [0.5], "std": [0.25], "min": 0, "max": 1}
    numbers = {"kind": "array", "mean": 3.0, "std": 1.0}
    stats = {"num_samples": 2, "fields": {"array": scan, "age": numbers}}

    for found in (stats, scan):
        module = Normalize.from_stats(found)
        assert module(torch.ones(1, 1, 2, 2, 2, dtype=torch.uint8)).unique().tolist() == [2.0]
    with pytest.raises(ValueError):
        Normalize.from_stats({"fields": {"array": scan, "other": scan}})


# -- as a module -------------------------------------------------------------------------------


def test_its_state_is_mean_and_std() -> None:
    module, other = Normalize([1.0, 2.0], [30.0, 40.0]), Normalize([9.0, 9.0], [9.0, 9.0])

    assert sorted(module.state_dict()) == ["mean", "std"]
    assert list(module.parameters()) == []
    other.load_state_dict(module.state_dict())

    assert other.mean.tolist() == [1.0, 2.0]
    assert other.std.tolist() == [30.0, 40.0]
    with pytest.raises(RuntimeError):
        Normalize.imagenet().load_state_dict(module.state_dict())


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "save"])
def test_it_can_be_copied(how: str) -> None:
    module = Normalize.imagenet(torch.float16, torch.channels_last)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)

    if how == "save":
        other = torch.load(file, weights_only=False)
    else:
        other = copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))

    images = some_images(2, 3, 4, 4)
    assert torch.equal(other(images), module(images))
    assert other(images).stride() == module(images).stride()


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("cpu", torch.float16),
        lambda m: m.type(torch.float16),
        lambda m: m.float(),
        lambda m: m.cpu(),
        lambda m: m.share_memory(),
    ],
    ids=range(9),
)
def test_a_model_in_another_dtype_does_not_blur_the_statistics(move: Any) -> None:
    """123.675 is 123.5 in bfloat16."""
    images = some_images(2, 3, 8, 8)
    plain = Normalize.imagenet(torch.bfloat16)(images)
    model = torch.nn.Sequential(Normalize.imagenet(torch.bfloat16), torch.nn.Conv2d(3, 4, 1))

    module = move(model)[0]

    assert torch.equal(module(images), plain)
    assert module.mean.dtype == module.std.dtype == torch.float32
    assert sorted(module.state_dict()) == ["mean", "std"]


def test_it_moves_with_its_model() -> None:
    module = Normalize.imagenet().to("meta")

    assert module.mean.device.type == module.std.device.type == "meta"
    found = module(some_images(2, 3, 4, 4).to("meta"))
    assert (found.device.type, found.dtype) == ("meta", torch.float32)
    assert Normalize.imagenet().to("meta", torch.float16).mean.device.type == "meta"


def test_a_meta_module_can_be_made_real_and_loaded() -> None:
    with torch.device("meta"):
        module = Normalize.imagenet()

    module = module.to_empty(device="cpu")
    module.load_state_dict(Normalize.imagenet().state_dict())

    images = some_images(1, 3, 4, 4)
    assert torch.equal(module(images), Normalize.imagenet()(images))


def test_it_takes_part_in_no_gradient() -> None:
    found = Normalize.imagenet()(some_images(1, 3, 4, 4))

    assert not found.requires_grad


def test_it_shows_its_settings() -> None:
    text = repr(Normalize.imagenet(torch.float16))

    assert "mean=[123.675, 116.28, 103.53]" in text
    assert "dtype=torch.float16" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_a_gpu_it_gives_the_same(dtype: torch.dtype) -> None:
    images = some_images(4, 3, 32, 32)
    module = Normalize.imagenet(dtype)

    found = copy.deepcopy(module).to("cuda")(images.to("cuda"))

    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), module(images), rtol=TOLERANCE[dtype], atol=1e-6)


# -- under the compiler, and back ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # with Python 3.13.0
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_one_graph_for_the_compiler(dtype: torch.dtype) -> None:
    images = some_images(2, 3, 5, 7)
    module = Normalize.imagenet(dtype)

    found = torch.compile(module, backend="eager", fullgraph=True)(images)

    assert torch.equal(found, module(images))


def test_autocast_does_not_change_it() -> None:
    images = some_images(2, 3, 5, 7)
    module = Normalize.imagenet()

    with torch.autocast("cpu", torch.bfloat16):
        found = module(images)

    assert found.dtype == torch.float32
    assert torch.equal(found, module(images))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (3, 16, 16), (2, 3, 2, 16, 16)])
def test_denormalize_gives_the_pixels_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    images = some_images(*shape)
    normalize = Normalize.imagenet(dtype)

    found = Denormalize.of(normalize)(normalize(images))

    assert torch.equal(found, images)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 5, 7), (2, 3, 4, 5, 7), (0, 3, 5, 7)])
def test_denormalize_equals_a_float64_reference(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Within half a step of x * std + mean, cut to the range: rounded to the nearest."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul_(2).to(dtype)
    column = (-1, *(1,) * max(2, len(shape) - 2))
    std, mean = (np.array(v).reshape(column) for v in (IMAGENET_STD, IMAGENET_MEAN))
    expected = np.clip(values.double().numpy() * std + mean, 0, 255)

    found = Denormalize(IMAGENET_MEAN, IMAGENET_STD)(values)

    assert found.dtype == torch.uint8
    assert found.shape == shape
    assert np.abs(found.numpy() - expected).max(initial=0) <= 0.5 + 1e-4


def test_denormalize_equals_the_formula_and_clamps() -> None:
    values = torch.tensor([[[[-9.0, 0.0, 0.004, 0.5, 1.0, 7.0]]]])
    module = Denormalize([100.0], [250.0])

    found = module(values)

    assert found.flatten().tolist() == [0, 100, 101, 225, 255, 255]
    assert values.flatten()[0] == -9  # the input stays as it was


def test_denormalize_16_bits() -> None:
    images = some_images(2, 1, 8, 8, dtype=torch.uint16)
    normalize = Normalize([30000.0], [9000.0])

    assert torch.equal(Denormalize([30000.0], [9000.0], torch.uint16)(normalize(images)), images)


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, 1, 4, 4), torch.zeros(3, 4)],
)
def test_denormalize_refuses_what_it_is_not_for(images: torch.Tensor) -> None:
    with pytest.raises(BatchError):
        Denormalize(IMAGENET_MEAN, IMAGENET_STD)(images)


def test_denormalize_checks_its_dtype() -> None:
    Denormalize([1.0], [2.0], torch.uint8)
    with pytest.raises(ValueError):
        Denormalize([1.0], [2.0], torch.int32)
