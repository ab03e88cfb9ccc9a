"""What a sample is made of: named, typed fields, and their JSON form.

A field says what a sample holds (``Image``, ``Label``), which codec turns it into a record of
bytes, and whether every record has the same size. Nothing here knows where the bytes lie.
"""

from loaders.schema.arrays import Array
from loaders.schema.field import FIELD_KINDS, MAX_RECORD_NBYTES, Field
from loaders.schema.labels import Label, MultiLabel
from loaders.schema.pictures import PICTURE_CODECS, Boxes, Image, Images, Keypoints, Mask
from loaders.schema.schema import VIRTUAL_FIELDS, Schema, check_field_name, field_from_json
from loaders.schema.tables import Categories, Features
from loaders.schema.texts import Bytes, Json, Text
from loaders.schema.tokens import Tokens

__all__ = [
    "FIELD_KINDS",
    "MAX_RECORD_NBYTES",
    "PICTURE_CODECS",
    "VIRTUAL_FIELDS",
    "Array",
    "Boxes",
    "Bytes",
    "Categories",
    "Features",
    "Field",
    "Image",
    "Images",
    "Json",
    "Keypoints",
    "Label",
    "Mask",
    "MultiLabel",
    "Schema",
    "Text",
    "Tokens",
    "check_field_name",
    "field_from_json",
]
