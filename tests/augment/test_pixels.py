"""Ops of pixels: values of torchvision, the same on a device, drawn for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from loaders import BatchAugment, DataLoader, RAMDataset, augment
from loaders.augment.edits import Kind, edit
from loaders.augment.planning import draw_geometry
from loaders.device.edits import edit_images, group_edits
from loaders.errors import BatchError, SchemaError
from loaders.schema import Image, Mask
from tests.torchvision_v2 import torchvision_v2

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[Any]

SIZES = [(1, 1), (2, 3), (7, 5), (33, 48), (64, 40)]


def pictures(channels: int = 3) -> list[Array]:
    """Noise, flat, dark, and a smooth one, in sizes from one pixel on."""
    rng = np.random.default_rng(0)
    made = []
    for height, width in SIZES:
        shape = (height, width, channels)
        ramp = np.linspace(0, 255, height * width * channels).reshape(shape)
        made += [rng.integers(0, 256, shape), np.full(shape, 90), rng.integers(0, 9, shape), ramp]
    return [each.astype(np.uint8) for each in made]


def on_host(ops: list[Any], images: list[Array], *, seed: int = 0, epoch: int = 0) -> list[Array]:
    sizes = np.array([image.shape[:2] for image in images])
    indices = np.arange(len(images))
    edits = draw_geometry(ops, sizes, seed=seed, epoch=epoch, indices=indices).edits
    assert edits is not None
    done = []
    for image, kinds, values in zip(images, edits.kinds, edits.values, strict=True):
        done.append(image.copy())
        edit(done[-1], kinds.tolist(), values.tolist())
    return done


def apart(one: Array, other: Array) -> Array:
    return np.asarray(np.abs(one.astype(int) - other.astype(int)))


def same(x: float) -> tuple[float, float]:
    return (x, x)


# Ops with fixed numbers; what torchvision is asked for; how far apart; the share that must be as near as that.
Case = tuple[Any, "Callable[[Any, Any], Any]", int, float]
CASES: dict[str, Case] = {
    "brightness": (
        augment.ColorJitter(brightness=same(1.3)),
        lambda f, x: f.adjust_brightness(x, 1.3),
        0,
        1,
    ),
    "contrast": (
        augment.ColorJitter(contrast=same(0.6)),
        lambda f, x: f.adjust_contrast(x, 0.6),
        1,
        1,
    ),
    "more contrast": (
        augment.ColorJitter(contrast=same(1.7)),
        lambda f, x: f.adjust_contrast(x, 1.7),
        1,
        1,
    ),
    "saturation": (
        augment.ColorJitter(saturation=same(1.6)),
        lambda f, x: f.adjust_saturation(x, 1.6),
        1,
        1,
    ),
    "less saturation": (
        augment.ColorJitter(saturation=same(0.2)),
        lambda f, x: f.adjust_saturation(x, 0.2),
        1,
        1,
    ),
    "hue": (augment.ColorJitter(hue=same(0.2)), lambda f, x: f.adjust_hue(x, 0.2), 1, 1),
    "hue back": (augment.ColorJitter(hue=same(-0.4)), lambda f, x: f.adjust_hue(x, -0.4), 1, 1),
    "grayscale": (
        augment.RandomGrayscale(1),
        lambda f, x: f.rgb_to_grayscale(x, num_output_channels=x.shape[0]),
        1,
        1,
    ),
    "invert": (augment.RandomInvert(1), lambda f, x: f.invert(x), 0, 1),
    "solarize": (augment.RandomSolarize(90, 1), lambda f, x: f.solarize(x, 90), 0, 1),
    "posterize": (augment.RandomPosterize(3, 1), lambda f, x: f.posterize(x, 3), 0, 1),
    "autocontrast": (augment.RandomAutocontrast(1), lambda f, x: f.autocontrast(x), 0, 1),
    "equalize": (augment.RandomEqualize(1), lambda f, x: f.equalize(x), 0, 1),
    "sharper": (
        augment.RandomAdjustSharpness(1.9, 1),
        lambda f, x: f.adjust_sharpness(x, 1.9),
        1,
        1,
    ),
    "smoother": (
        augment.RandomAdjustSharpness(0.3, 1),
        lambda f, x: f.adjust_sharpness(x, 0.3),
        1,
        1,
    ),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", CASES)
def test_values_are_torchvisions(name: str, channels: int) -> None:
    functional = torchvision_v2("torchvision.transforms.v2.functional")
    op, call, most, share = CASES[name]
    images = pictures(channels)

    found = on_host([op], images)

    for image, mine in zip(images, found, strict=True):
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        want = call(functional, tensor).permute(1, 2, 0).numpy()
        assert (apart(mine, want) <= most).mean() >= share
        device = edit_images(tensor[None].clone(), group_edits(one(op, image)))
        assert apart(device[0].permute(1, 2, 0).numpy(), want).max() <= most


def one(op: Any, image: Array) -> Any:
    sizes = np.array([image.shape[:2]])
    return draw_geometry([op], sizes, seed=0, epoch=0, indices=np.zeros(1, int)).edits


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.4), (9, 2.0), ((5, 11), 1.3), (23, 0.1)])
def test_blur_is_torchvisions(size: Any, sigma: float) -> None:
    functional = torchvision_v2("torchvision.transforms.v2.functional")
    op = augment.GaussianBlur(size, same(sigma))

    for image in pictures()[12:]:
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        want = functional.gaussian_blur(tensor, size, [sigma, sigma]).permute(1, 2, 0).numpy()
        assert apart(on_host([op], [image])[0], want).max() <= 1
        device = edit_images(tensor[None].clone(), group_edits(one(op, image)))
        assert apart(device[0].permute(1, 2, 0).numpy(), want).max() <= 1


@pytest.mark.parametrize("space", ["RandAugment", "TrivialAugmentWide"])
def test_each_op_of_a_list_is_torchvisions(space: str) -> None:
    """Op by op at a strength: whichever of the fourteen was drawn is found among torchvision's."""
    v2 = torchvision_v2()
    image = pictures()[15]  # smooth
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    magnitudes: tuple[int, ...]
    if space == "RandAugment":
        mine: Any = augment.RandAugment(1, 20)
        theirs, magnitudes, num = v2.RandAugment(1, 20), (20,), 150
    else:
        mine, theirs = augment.TrivialAugmentWide(5), v2.TrivialAugmentWide(5)
        magnitudes, num = (0, 1, 2, 3, 4), 400
    want = []
    for name, (strengths, is_signed) in theirs._AUGMENTATION_SPACE.items():
        bins = strengths(theirs.num_magnitude_bins, *image.shape[:2])
        chosen = [0.0] if bins is None else [float(bins[i]) for i in magnitudes]
        for strength in [*chosen, *(-s for s in chosen if is_signed)]:
            how = {"interpolation": theirs.interpolation, "fill": theirs._fill}
            made = theirs._apply_image_or_video_transform(tensor, name, strength, **how)
            want.append(made.permute(1, 2, 0).numpy())

    found = on_host([mine], [image] * num)

    hits = np.array([[(apart(each, other) <= 2).mean() for other in want] for each in found])
    assert (
        hits.max(axis=1).min() >= 0.95
    )  # OpenCV takes the other of two pixels where they are as near
    assert (hits.max(axis=0) >= 0.95).mean() > 0.9  # and nearly each of them came


@pytest.mark.parametrize("all_ops", [True, False])
@pytest.mark.parametrize("depth", [-1, 2])
def test_augmix_is_torchvisions_at_the_same_draws(depth: int, all_ops: bool) -> None:
    v2 = torchvision_v2()
    op = augment.AugMix(5, 2, depth, all_ops=all_ops, fill=7)
    theirs = v2.AugMix(5, 2, depth, all_ops=all_ops, fill=7)
    space = theirs._AUGMENTATION_SPACE if all_ops else theirs._PARTIAL_AUGMENTATION_SPACE
    order = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
    order += ["Brightness", "Color", "Contrast", "Sharpness"] if all_ops else []
    order += ["Posterize", "Solarize", "AutoContrast", "Equalize"]
    image, longest = pictures()[15], depth if depth > 0 else 3
    draws = np.random.default_rng(3).random((30, op.num_draws))
    edits = op.edit(draws, np.array([image.shape[:2]] * 30))
    for row, kinds, values in zip(draws, edits.kinds, edits.values, strict=True):
        weights = values[np.isin(kinds, (Kind.KEEP, Kind.MIX)), 0]
        assert abs(weights.sum() - 1) < 1e-9
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        mix = weights[0] * tensor.float()
        for chain, weight in zip(
            np.split(row[-2 * (1 + 3 * longest) :], 2), weights[1:], strict=True
        ):
            made, num = tensor, depth if depth > 0 else 1 + int(chain[0] * 3)
            for pick, at, sign in chain[1:].reshape(-1, 3)[:num]:
                name = order[int(pick * len(order))]
                strengths, is_signed = space[name]
                bins = strengths(10, *image.shape[:2])
                strength = 0.0 if bins is None else float(bins[int(at * 5)])
                strength *= -1 if is_signed and sign <= 0.5 else 1
                how = {"interpolation": theirs.interpolation, "fill": theirs._fill}
                made = theirs._apply_image_or_video_transform(made, name, strength, **how)
            mix += weight * made
        found = image.copy()
        edit(found, kinds.tolist(), values.tolist())
        want = mix.to(torch.uint8).permute(1, 2, 0).numpy()
        assert (apart(found, want) <= 2).mean() > 0.9
        assert apart(found, want).mean() < 1.5


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_augmix_draws_its_weights_of_dirichlet(alpha: float) -> None:
    edits = edits_of(augment.AugMix(alpha=alpha), 20_000)
    is_weight = np.isin(edits.kinds[0], (Kind.KEEP, Kind.MIX))
    weights = edits.values[:, is_weight, 0]
    shares = np.concatenate(
        [weights[:, :1], weights[:, 1:] / weights[:, 1:].sum(1, keepdims=True)], 1
    )

    rng = np.random.default_rng(0)
    want = [rng.dirichlet([alpha] * 2, 20_000)[:, 0], *rng.dirichlet([alpha] * 3, 20_000).T]
    for mine, other in zip(shares.T, want, strict=True):
        both = np.sort(np.concatenate([mine, other]))
        below = [np.searchsorted(np.sort(each), both, "right") for each in (mine, other)]
        assert np.abs(below[0] - below[1]).max() / 20_000 < 0.02  # Kolmogorov and Smirnov
    lengths = (edits.kinds[:, 1:4] != Kind.NONE).sum(axis=1)
    assert np.abs(np.bincount(lengths)[1:] / 20_000 - 1 / 3).max() < 0.02


def test_augmix_knows_its_weights_where_float64_does_not_know_their_sum() -> None:
    edits = edits_of(augment.AugMix(alpha=1e-3), 2000)

    weights = edits.values[:, np.isin(edits.kinds[0], (Kind.KEEP, Kind.MIX)), 0]
    assert np.abs(weights.sum(axis=1) - 1).max() < 1e-9
    assert weights.min() >= 0
    assert abs((weights[:, 0] > 0.5).mean() - 0.5) < 0.05


RECIPES: dict[str, list[Any]] = {
    "mix": [augment.RandomApply([augment.AugMix()], 0.7), augment.RandomInvert()],
    "jitter": [augment.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "simclr": [
        augment.RandomApply([augment.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        augment.RandomGrayscale(0.3),
        augment.RandomApply([augment.GaussianBlur(7)], 0.5),
        augment.RandomSolarize(128, 0.3),
    ],
    "rand": [augment.RandAugment(2, 12, interpolation="bilinear", fill=(9, 8, 7))],
    "wide": [augment.TrivialAugmentWide()],
    "erasing": [augment.RandomErasing(0.7), augment.RandomErasing(0.7, value=(1, 2, 3))],
    "noise": [augment.RandomErasing(1, value="random")],
    "tables": [
        augment.RandomPosterize(3),
        augment.RandomEqualize(),
        augment.RandomAutocontrast(),
        augment.RandomInvert(),
        augment.RandomAdjustSharpness(2),
    ],
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", RECIPES)
def test_a_device_gives_what_the_host_gives(name: str, channels: int) -> None:
    """Several edits after each other: a step of the first may be more behind the next."""
    ramp = np.linspace(0, 40, 41 * 52 * channels).reshape(41, 52, channels)
    images = [((ramp * (i + 1)) % 256).astype(np.uint8) for i in range(24)]
    ops = [op for op in RECIPES[name] if channels == 3 or name != "rand"] or [
        augment.RandAugment()
    ]

    module = BatchAugment(ops, seed=5)
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    there = module(batch, indices=range(24), epoch=2).permute(0, 2, 3, 1).numpy()
    here = np.stack(on_host(ops, images, seed=5, epoch=2))

    is_exact = name in ("erasing", "noise", "tables")
    assert (apart(there, here) <= 1).mean() >= (0.999 if is_exact else 0.97)
    assert apart(there, here).mean() < 1.5


def test_a_chain_of_tables_is_its_tables_one_after_the_other() -> None:
    image = pictures()[-4]
    chain: list[tuple[int, list[float]]] = [
        (Kind.BRIGHTNESS, [1.4]),
        (Kind.SOLARIZE, [100]),
        (Kind.POSTERIZE, [5]),
    ]
    chain += [(Kind.CONTRAST, [0.7]), (Kind.BRIGHTNESS, [0.8]), (Kind.INVERT, [])]

    together, apart_ = image.copy(), image.copy()
    edit(together, [kind for kind, _ in chain], [values for _, values in chain])
    for kind, values in chain:
        edit(apart_, [kind], [values])

    np.testing.assert_array_equal(together, apart_)


# -- draws -----------------------------------------------------------------------------------------


def edits_of(op: Any, num: int, size: tuple[int, int] = (50, 60)) -> Any:
    return draw_geometry(
        [op], np.array([size] * num), seed=1, epoch=0, indices=np.arange(num)
    ).edits


def assert_uniform(values: Array, low: float, high: float) -> None:
    """Chi-squared of twenty bins: its 99.99th percentile at 19 degrees of freedom is 50."""
    counts, _ = np.histogram(values, 20, (low, high))
    expected = len(values) / 20
    assert counts.sum() == len(values)
    assert ((counts - expected) ** 2 / expected).sum() < 50


def test_jitter_is_uniform_in_value_and_order() -> None:
    edits = edits_of(augment.ColorJitter(0.4, (0.5, 0.9), 0.2, 0.1), 20_000)

    for kind, low, high in [(1, 0.6, 1.4), (2, 0.5, 0.9), (3, 0.8, 1.2), (4, -0.1, 0.1)]:
        assert_uniform(edits.values[edits.kinds == kind][:, 0], low, high)
    orders = edits.kinds @ [1000, 100, 10, 1]
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 60  # 23 degrees of freedom


@pytest.mark.parametrize(
    ("op", "p"),
    [
        (augment.RandomGrayscale(), 0.1),
        (augment.RandomSolarize(128, 0.2), 0.2),
        (augment.RandomErasing(), 0.5),
        (augment.RandomApply([augment.RandomGrayscale(0.5)], 0.6), 0.3),
    ],
    ids=["grayscale", "solarize", "erasing", "apply"],
)
def test_ops_come_with_their_probability(op: Any, p: float) -> None:
    share = (edits_of(op, 20_000).kinds > 0).mean()

    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / 20_000)


def test_erased_rectangles_have_uniform_area_and_log_uniform_ratio_and_lie_inside() -> None:
    edits = edits_of(augment.RandomErasing(1, (0.05, 0.2), (0.5, 2)), 8000, (500, 600))
    y, x, height, width = edits.values[:, 0, :4].T

    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (y + height <= 500).all()
    assert (x + width <= 600).all()
    assert_uniform((height * width / 300_000).clip(0.05, 0.2), 0.05, 0.2)  # rounded to pixels
    assert_uniform(np.log(height / width).clip(-np.log(2), np.log(2)), -np.log(2), np.log(2))
    assert_uniform((y + 0.5) / (500 - height + 1), 0, 1)


def test_ops_of_lists_are_equally_frequent() -> None:
    for op, most in ((augment.RandAugment(), 1), (augment.TrivialAugmentWide(), 0)):
        kinds = edits_of(op, 14_000).kinds[:, most]
        assert abs((kinds == Kind.WARP).mean() - 5 / 14) < 0.02
        assert abs((kinds == Kind.EQUALIZE).mean() - 1 / 14) < 0.01
        assert abs((kinds == Kind.NONE).mean() - 1 / 14) < 0.01


def test_edits_do_not_depend_on_the_batch() -> None:
    ops = [op for recipe in RECIPES.values() for op in recipe]
    sizes, indices = np.array([[40, 50]] * 32), np.arange(32)
    whole = draw_geometry(ops, sizes, seed=3, epoch=1, indices=indices).edits
    assert whole is not None

    for i in (0, 7, 31):
        alone = draw_geometry(ops, sizes[[i]], seed=3, epoch=1, indices=indices[[i]]).edits
        assert alone is not None
        np.testing.assert_array_equal(alone.kinds[0], whole.kinds[i])
        np.testing.assert_array_equal(alone.values[0], whole.values[i])


@pytest.mark.parametrize(
    "name",
    ["erasing", *(pytest.param(n, marks=pytest.mark.slow)
                  for n in ("colours", "RandAugment", "TrivialAugmentWide"))],
)  # fmt: skip
def test_recipes_are_as_bright_and_as_varied_as_torchvisions(name: str) -> None:
    """Mean and spread of a picture's mean and deviation, over many draws of both."""
    v2 = torchvision_v2()
    lists: dict[str, tuple[list[Any], Any]] = {
        "colours": (
            [
                augment.RandomApply([augment.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
                augment.RandomGrayscale(0.2),
                augment.RandomSolarize(128, 0.2),
            ],
            v2.Compose(
                [
                    v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
                    v2.RandomGrayscale(0.2),
                    v2.RandomSolarize(128, 0.2),
                ]
            ),
        ),
        "RandAugment": ([augment.RandAugment(2, 15)], v2.RandAugment(2, 15)),
        "TrivialAugmentWide": ([augment.TrivialAugmentWide()], v2.TrivialAugmentWide()),
        "erasing": ([augment.RandomErasing(0.8)], v2.RandomErasing(0.8)),
    }
    ours, theirs = lists[name]
    image, num = pictures()[15][:24, :24].copy(), 1200
    image[..., 1] //= 2
    tensor = torch.from_numpy(image).permute(2, 0, 1)

    torch.manual_seed(0)
    mine = np.stack(on_host(ours, [image] * num)).reshape(num, -1, 3)
    made = [theirs(tensor).permute(1, 2, 0).reshape(-1, 3).numpy() for _ in range(num)]

    for statistic in (lambda x: x.mean(axis=(1, 2)), lambda x: x.std(axis=(1, 2)), channels_apart):
        one, other = (statistic(x.astype(float)) for x in (mine, np.stack(made)))
        error = np.hypot(one.std(), other.std()) / np.sqrt(num)
        assert abs(one.mean() - other.mean()) < 4 * error + 0.5
        assert 0.85 < one.std() / other.std() < 1.18


def channels_apart(x: Array) -> Array:
    return np.asarray(x.mean(axis=1).max(axis=1) - x.mean(axis=1).min(axis=1))


# -- datasets --------------------------------------------------------------------------------------

TRAIN: list[Any] = [
    augment.RandomResizedCrop(24),
    augment.RandomHorizontalFlip(),
    augment.ColorJitter(0.4, 0.4, 0.4, 0.1),
    augment.RandomErasing(),
]


def dataset_of(ops: list[Any], num: int = 20) -> RAMDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (num, 40, 50, 3), np.uint8)
    return RAMDataset.from_arrays(image=pixels, sample=np.arange(num), augment=ops)


def test_a_sample_is_the_same_in_any_batch_with_any_workers_and_after_a_resume() -> None:
    dataset = dataset_of(TRAIN)

    def served(batch_size: int, **options: Any) -> dict[int, torch.Tensor]:
        loader = DataLoader(dataset, batch_size, shuffle=True, seed=3, **options)
        found: dict[int, torch.Tensor] = {}
        for step, (images, numbers) in enumerate(loader):
            if options.get("num_workers") == 3 and step == 1:  # leave, and go on in another loader
                state = loader.state_dict()
                loader = DataLoader(dataset, batch_size, shuffle=True, seed=3)
                loader.load_state_dict(state)
                rest = [pair for batch in loader for pair in zip(*batch, strict=True)]
                found |= {int(n): image for image, n in rest}
            found |= {int(n): image for image, n in zip(images, numbers, strict=True)}
            if len(found) == len(dataset):
                break
        return found

    one, other = served(7, num_workers=1), served(4, num_workers=3)

    assert one.keys() == other.keys() == set(range(20))
    assert all(torch.equal(one[n], other[n]) for n in one)


def test_masks_are_left_alone_and_views_differ() -> None:
    image = np.full((4, 30, 30, 3), 100, np.uint8)
    mask = np.full((4, 30, 30), 5, np.uint8)
    schema = {"image": Image(size=(30, 30), codec="raw"), "mask": Mask(size=(30, 30), codec="raw")}
    ops = [augment.CenterCrop(20), augment.RandomInvert(1)]
    both = [augment.Views(a=ops, b=[augment.CenterCrop(20), augment.RandomSolarize(0, 1)])]

    data = RAMDataset.from_arrays(image=image, mask=mask, schema=schema, augment=both)
    sample = data[0]

    assert (sample.image_a == 155).all()
    assert (sample.image_b == 155).all()
    assert (sample.mask_a == 5).all()


def test_what_ops_of_pixels_cannot_do_is_refused() -> None:
    mask = np.zeros((4, 30, 30), np.uint8)
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(
            image=np.zeros((4, 30, 30, 3), np.uint16), augment=[augment.RandomInvert()]
        )
    with pytest.raises(SchemaError):
        RAMDataset.from_arrays(
            image=np.zeros((4, 30, 30, 3), np.uint8),
            mask=mask,
            schema={"mask": Mask(size=(30, 30), codec="raw")},
            augment=[augment.RandAugment()],
        )
    with pytest.raises(BatchError):
        edit(np.zeros((3, 3, 2), np.uint8), [Kind.INVERT], [[]])
    with pytest.raises(TypeError):
        augment.RandomApply([augment.RandomHorizontalFlip()])  # type: ignore[list-item]
    for make in (
        lambda: augment.ColorJitter(brightness=(2, 1)),
        lambda: augment.ColorJitter(hue=0.6),
        lambda: augment.GaussianBlur(4),
        lambda: augment.RandomErasing(value="noise"),
        lambda: augment.RandAugment(magnitude=31),
        lambda: augment.AugMix(severity=11),
        lambda: augment.AugMix(alpha=0),
    ):
        with pytest.raises(ValueError):
            make()
