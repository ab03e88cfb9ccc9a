"""The Triton kernels: run by Triton's interpreter where Triton is installed, and on a GPU where there is one."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loaders import Normalize
from loaders.device import fused

KINDS = {torch.uint8: 256, torch.uint16: 1 << 16, torch.int16: 1 << 15}
SHAPES = [
    (3, 3, 17, 19),
    (2, 1, 5, 4),
    (2, 5, 3, 4, 6),
    (2, 3, 40, 40),
    (1, 4, 1, 1),
    (2, 3, 1, 7),
]
TARGETS = [torch.float32, torch.float16, torch.bfloat16]


def in_order(tensor: torch.Tensor, is_last: bool) -> torch.Tensor:
    last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=last) if is_last else tensor


def check_normalize(device: str, *, bfloat16_rounds: bool) -> None:
    """Every layout, dtype and shape against plain operations: equal, but for a bfloat16 that is cut, not rounded."""
    for kind, shape, last, out_last, target in itertools.product(
        KINDS, SHAPES, (False, True), (False, True), TARGETS
    ):
        torch.manual_seed(0)
        images = in_order(torch.randint(0, KINDS[kind], shape).to(kind).to(device), last)
        mean, std = (torch.rand(shape[1], device=device) * 90 + 30 for _ in range(2))
        out = in_order(torch.empty(shape, dtype=target, device=device), out_last)
        column = (-1, *(1,) * (len(shape) - 2))
        want = ((images.float() - mean.view(column)) / std.view(column)).to(target)

        found = fused.normalized(images, mean, std, out)

        case = (kind, shape, last, out_last, target)
        assert found is out, case
        cut = target is torch.bfloat16 and not bfloat16_rounds
        torch.testing.assert_close(found, want, rtol=2.0**-7 if cut else 0, atol=0)


def batch_of(images: torch.Tensor) -> torch.Tensor:
    return images.unsqueeze(0) if images.dim() == 3 else images


def check_orders(device: str) -> None:
    """What is cut out of images keeps their memory order, as plain operations keep it."""
    torch.manual_seed(0)
    whole = torch.randint(0, 256, (4, 4, 9, 7)).to(torch.uint8).to(device)
    module, num_fused = Normalize([9.0, 8, 7], [2.0, 3, 4]).to(device), 0
    mean, std = (values.view(-1, 1, 1) for values in (module.mean, module.std))

    for is_last, is_one in itertools.product((False, True), repeat=2):
        images = in_order(whole, is_last)
        rgb = images[1, :3] if is_one else images[1:, :3]
        for cut in (rgb, rgb[..., 1:5, :], rgb[..., ::2, :], rgb[..., 2:6]):
            want = cut.float().sub_(mean).div_(std)
            found = module._fused(batch_of(cut))
            if found is not None:
                num_fused += 1
                found = found.squeeze(0) if is_one else found
                assert found.stride() == want.stride()
                assert torch.equal(found, want)
    assert num_fused >= 8


def check_gather(source_device: str, device: str) -> None:
    """Rows chosen by number; they may be in another memory than the result."""
    torch.manual_seed(0)
    rows = torch.tensor([4, 0, 4, 2], device=device)
    table = torch.randint(0, 1 << 40, (5, 3001))
    table = table.pin_memory() if source_device == "pinned" else table.to(source_device)

    copied = fused.gathered(table, rows, torch.empty((4, 3001), dtype=torch.int64, device=device))

    assert torch.equal(copied.cpu(), table.cpu()[rows.cpu()])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_under_the_interpreter() -> None:
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    code = (
        "from tests.device.test_kernels import check_gather, check_normalize, check_orders\n"
        "check_normalize('cpu', bfloat16_rounds=False)\ncheck_orders('cpu')\ncheck_gather('cpu', 'cpu')"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr


def compile_all() -> None:
    """Compile every kernel for a GPU that is not here: the interpreter takes Python that the compiler refuses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from loaders.device import kernels

    pointers = {"x": "*u8", "out": "*bf16", "mean": "*fp32", "std": "*fp32"}
    rows = {"x": "*i64", "out": "*i64", "rows": "*i64"}
    for kernel, types, ones in (
        (kernels.normalize_planes, pointers, ["x_pixel", "out_pixel"]),
        (kernels.normalize_planes, pointers, ["x_channel", "out_pixel", "num_blocks"]),
        (kernels.normalize_interleaved, pointers, ["x_channel"]),
        (kernels.normalize_interleaved, pointers, ["x_pixel", "num_blocks"]),
        (kernels.gather_rows, rows, []),
    ):
        # As a launch does it: numbers that are 1 become constants.
        constants = {"CHANNELS": 3, "BLOCK": kernels.BLOCK, "SAME": "x_channel" in ones}
        constants |= dict.fromkeys(ones, 1)
        names = kernel.arg_names
        constants = {name: value for name, value in constants.items() if name in names}
        signature = dict.fromkeys(names, "i32") | types | dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)):
            assert "cubin" in triton.compile(source, target=target, options=fused.LAUNCH).asm


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_compile(tmp_path: Path) -> None:
    """In a process of its own, with nothing compiled before, and without a warning."""
    code = "from tests.device.test_kernels import compile_all as f; f()"

    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr


def test_pixels_that_are_not_evenly_spaced_have_no_kernel() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)

    assert fused.strides(images) == (192, 64, 1)
    assert fused.strides(images.contiguous(memory_format=torch.channels_last)) == (192, 1, 3)
    assert fused.strides(images[:, :, 1:5]) == (192, 64, 1)
    assert fused.strides(images[:, :, :, 1:5]) is None
    assert fused.strides(images[:, :, :1, :1]) == (192, 64, 1)


@pytest.mark.skipif(fused.kernels() is None, reason="needs Triton")
@pytest.mark.parametrize("steps", [(1 << 34, 1 << 30, 4, 1), (1 << 34, 1, 1 << 30, 1 << 28)])
def test_slices_whose_positions_are_beyond_32_bits_have_no_kernel(steps: tuple[int, ...]) -> None:
    """A few values of something large: positions are bounded by how far they reach, not by their number."""
    images = torch.empty_strided((2, 3, 4, 4), steps, dtype=torch.uint8, device="meta")
    mean = torch.ones(3, device="meta")

    assert fused.strides(images) is not None
    assert fused.normalized(images, mean, mean, torch.empty(2, 3, 4, 4, device="meta")) is None


@pytest.mark.skipif(fused.kernels() is None, reason="needs Triton")
def test_where_triton_starts_no_kernel_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """As on the CPU, and on a GPU without a C compiler; plain operations then do the work."""
    fused.why_not.cache_clear()

    whys = [fused.why_not(torch.device("cpu")) for _ in range(2)]

    assert whys[0]
    assert whys[1] == whys[0]
    assert len(caplog.records) == 1
    assert "plain operations take its place" in caplog.text


def test_a_triton_that_cannot_be_imported_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def kernels() -> None:
        raise ImportError("libtriton.so: cannot open shared object file")

    fused.why_not.cache_clear()
    monkeypatch.setattr(fused, "kernels", kernels)

    why = fused.why_not(torch.device("cpu"))

    fused.why_not.cache_clear()
    assert why is not None
    assert "libtriton.so" in why
    assert "plain operations take its place" in caplog.text


gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or fused.kernels() is None, reason="needs CUDA and Triton"
)


@pytest.mark.gpu
@gpu
def test_kernels_on_a_gpu() -> None:
    check_normalize("cuda", bfloat16_rounds=True)
    check_orders("cuda")
    check_gather("cuda", "cuda")
    check_gather("pinned", "cuda")


@pytest.mark.gpu
@gpu
@pytest.mark.filterwarnings("default")  # torch's compiler warns of what it uses itself
@pytest.mark.parametrize("order", [None, torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 3, 33, 35), (3, 33, 35), (2, 3, 5, 33, 35)])
def test_normalize_on_a_gpu_is_fused_and_equal_to_the_plain_path(
    order: Any, shape: tuple[int, ...]
) -> None:
    images = torch.randint(0, 256, shape).to(torch.uint8)
    for dtype in TARGETS:
        module = Normalize.imagenet(dtype, order)
        want = module(images)
        module = module.to("cuda")

        found = module(images.cuda())
        with torch.autocast("cuda", torch.bfloat16):
            under_autocast = module(images.cuda())
        torch.compiler.reset()  # or these would count as one that is compiled again and again
        compiled = torch.compile(module, fullgraph=True)(images.cuda())

        assert module._fused(batch_of(images.cuda())) is not None
        assert torch.equal(found.cpu(), want)
        assert torch.equal(under_autocast, found)
        assert found.stride() == want.stride()
        torch.testing.assert_close(compiled, found)
