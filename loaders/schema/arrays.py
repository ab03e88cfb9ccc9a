"""Numbers of any type and shape: volumes, series, embeddings."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from loaders.errors import SchemaError
from loaders.schema.field import Field, check_dtype, check_nbytes, field_kind, is_count
from loaders.schema.labels import check_classes

_MAX_AXES = 32  # of a numpy array, before numpy 2


@field_kind
class Array(Field):
    """Numbers of one dtype and shape.

    Attributes:
        dtype: bool, or any integer or floating type of 8 to 64 bits.
        dims: The shape: lengths of at least 1, or None for an axis that varies from sample to
            sample (and may then be 0).
        codec: ``raw``.
        spatial: How many of the last axes crops and flips move: 3 for a volume of (C, D, H, W) or
            a mask of (D, H, W), 2 for a clip of (C, T, H, W) whose frames are not cut, 1 for a series
            of (C, T), 0 for none. None says nothing: such an array stays as it is, and a dataset with
            ``augment`` refuses it where it looks as if it should move.
        classes: Names of the whole numbers in it, such as those of the classes of boxes.
    """

    kind: ClassVar[str] = "array"
    _optional: ClassVar[tuple[str, ...]] = ("spatial", "classes")
    dtype: str = field(default="float32", kw_only=False)
    dims: tuple[int | None, ...] = field(default=(), kw_only=False)
    codec: str = "raw"
    spatial: int | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", check_dtype(self.dtype, "uifb"))
        # An axis of length 0 would make records of no bytes, which no format can tell apart.
        dims: Any = self.dims
        is_list = isinstance(dims, tuple | list) and len(dims) <= _MAX_AXES
        if not is_list or not all(n is None or is_count(n) for n in dims):
            what = f"dims must be up to {_MAX_AXES} lengths of at least 1, or None"
            raise SchemaError(f"{what}, got {dims!r}")
        object.__setattr__(self, "dims", tuple(dims))
        spatial, most = self.spatial, len(self.dims)
        if spatial is not None and (type(spatial) is not int or not 0 <= spatial <= most):
            raise SchemaError(
                f"spatial must be in [0, {most}], the axes, or None, got {spatial!r}"
            )
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes))
        check_nbytes(self)

    @property
    def meaning(self) -> tuple[str, ...]:
        return ("classes",)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The dims."""
        return self.dims
