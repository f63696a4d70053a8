"""Sources of images, by the part of `data.source` before the colon.

Pillow, scikit-learn and TFDS are slow to import, so they are imported where they are used.
"""

import dataclasses
import functools
import io
import types
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transformer.data.cache.content_digests import contents_of
from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import Source, tallied
from transformer.data.sources.columnar import ParquetFiles, SavedDataset
from transformer.data.sources.options import Options
from transformer.data.sources.tfds import TfdsText
from transformer.errors import UserError, first_line

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff")
"""Suffixes of image files in `folder:`; other files are left out."""

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
"""The formats that are read, whatever the name of a file says: Pillow has others, one of them a programming
language that it hands to another program."""

Record = tuple[bytes, Any, str]
"""(content, image, class): bytes that are equal for duplicates, a Pillow image, and the name of its class."""


class Images(ABC):
    """Images and the names of their classes, by index.

    `identity` changes when an image does, and is computed without reading them; `name` is for messages;
    `divided` says whether this is one split of a data set, not all of it. `content` is as in `Source`.
    """

    identity: str
    name: str
    divided = False
    tally: Mapping[str, int] = types.MappingProxyType({})
    """As in `Source`."""

    @property
    def content(self) -> dict[str, Any]:
        """Name -> identity of all the images."""
        return {self.name: self.identity}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record: ...

    def place(self, index: int) -> str:
        """The location of an image, for messages."""
        return f"{self.name}: image {index + 1}"


class Digits(Images):
    """`digits`: 1,797 handwritten digits, 8 x 8 pixels of 17 shades, which come with scikit-learn.

    Source: Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI; its test set.
    """

    def __init__(self, argument: str, split: str, options: Options, label_field: str) -> None:
        if argument:
            raise UserError(f"digits:{argument}: digits takes no argument")
        self.name, self.identity = "digits", "digits 1"

    def __len__(self) -> int:
        return len(self._set.target)

    def __getitem__(self, index: int) -> Record:
        from PIL import Image

        pixels_hw = np.round(self._set.images[index] * (255 / 16)).astype(np.uint8)
        return pixels_hw.tobytes(), Image.fromarray(pixels_hw), str(self._set.target[index])

    @functools.cached_property
    def _set(self) -> Any:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise UserError("digits: it comes with scikit-learn: `pip install scikit-learn`") from None
        return load_digits()


class ImageFolder(Images):
    """`folder:PATH`: each sub-folder is a class, with its images, some of which may be in further folders.

    Other files, and files and folders whose names start with a dot, are left out.

    Raises:
      UserError: no such folder, no sub-folder, one with no image itself, or (when read) a file that is not an
        image.
    """

    def __init__(self, argument: str, split: str, options: Options, label_field: str) -> None:
        self._root = folder = Path(argument).expanduser().absolute()
        self.name = f"folder:{argument}"
        if not argument or not folder.is_dir():
            problem = "it is a file" if folder.is_file() else "there is no such folder"
            raise UserError(f"{self.name}: {problem}")
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
        if not classes:
            raise UserError(f"{self.name}: no sub-folder in it; each is to be a class, with its images")
        self.files: list[Path] = []
        reasons = [
            "hidden" if path.name[0] == "." else "beside the folders of classes"
            for path in {*folder.iterdir()} - {*classes}
        ]
        for child in classes:
            found_here = [*_files_below(child)]
            if not any(path.parent == child and not reason for path, reason in found_here):
                deeper = any(path.is_dir() for path in child.iterdir())
                hint = f"; if its sub-folders are the classes, folder:{folder / child.name}" if deeper else ""
                raise UserError(f"{self.name}: no image in its sub-folder {child.name!r}{hint}")
            self.files += [path for path, reason in found_here if not reason]
            reasons += [reason for _, reason in found_here if reason]
        self.tally = tallied(len(self.files), Counter(reasons))
        stats = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in self.files]
        self.identity = digest("folder", stats)
        self._folder = options.folder

    @property
    def content(self) -> dict[str, Any]:
        """Every file with its size and digest, independent of the folder."""
        return contents_of(self.files, self._folder)

    def place(self, index: int) -> str:
        """The file of an image."""
        return str(self.files[index])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        image = open_image(file)
        return file.read_bytes(), image, file.relative_to(self._root).parts[0]


def _files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files in a folder and its sub-folders, each with a reason to leave it out, or "" for an image."""
    for path in sorted(folder.iterdir()):
        suffix = path.suffix.lower()
        if path.name[0] == ".":
            yield path, "hidden"
        elif path.is_symlink() and not path.is_file():
            yield path, "link to a folder" if path.is_dir() else "link to a file that is not there"
        elif path.is_dir():
            yield from _files_below(path)
        elif not path.is_file():
            yield path, "not a file"
        else:
            yield path, "" if suffix in SUFFIXES else f"suffix {suffix}" if suffix else "no suffix"


class TfdsImages(Images):
    """`tfds:NAME`: one split of a TFDS data set with an image and a class; splits as in `TfdsText`.

    Raises:
      UserError: no such data set, split or field, or the data set cannot be prepared.
    """

    divided = True

    def __init__(self, argument: str, split: str, options: Options, label_field: str) -> None:
        self._records, self._label = TfdsText(argument, split, options), label_field
        self.name, self.identity = self._records.name, f"{self._records.identity} {label_field}"

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        from PIL import Image

        record = self._records[index]
        if self._label not in record:
            there = ", ".join(record)
            raise UserError(f"{self.name}: no label_field {self._label!r}; fields there: {there}")
        pixels, label = record[self._records.field], record[self._label]
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
            raise UserError(f"{self.name}: its field {self._records.field!r} is not an image of 8-bit pixels")
        picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        return pixels.tobytes(), picture, str(label)


class ColumnImages(Images):
    """`parquet:GLOB` or `hf:FOLDER`: a column of images, as bytes or, as `datasets` writes them, {"bytes",
    "path"}, and one of classes.

    Raises:
      UserError: no such file or column, or (when read) a row without the bytes of an image.
    """

    def __init__(
        self,
        source: Callable[[str, str, Options], Source],
        argument: str,
        split: str,
        options: Options,
        label: str,
    ) -> None:
        """`source` makes the source of the classes, from the other arguments."""
        self._field, self._label = options.field, label
        settings: Any = {"field": label, "fields": (options.field, label), "numbers": True, "divide": False}
        self._records = source(argument, split, dataclasses.replace(options, **settings))
        self.name, self.identity = self._records.name, self._records.identity

    @property
    def content(self) -> dict[str, Any]:
        """The content of the files."""
        return self._records.content

    def place(self, index: int) -> str:
        """The file of an image and its row."""
        return self._records.place(index)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        record = self._records[index]
        image = record[self._field]
        data = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(data, bytes):
            kind = "only the path of an image" if isinstance(image, dict) else type(image).__name__
            raise UserError(
                f"{self.place(index)}: {self._field!r} has {kind}; expected the bytes of an image"
            )
        return data, open_image(io.BytesIO(data), self.place(index)), record[self._label]


IMAGES: dict[str, Callable[[str, str, Options, str], Images]] = {
    "digits": Digits,
    "folder": ImageFolder,
    "tfds": TfdsImages,
    "parquet": functools.partial(ColumnImages, ParquetFiles),
    "hf": functools.partial(ColumnImages, SavedDataset),
}
"""Kind -> constructor, called with the part after the colon, the split, the options (with the image's
`field`) and the field of the class."""


def open_image(file: str | Path | BinaryIO, name: str = "") -> Any:
    """The image in a file, upright, decoded; `name` is that of the file, for messages.

    Raises:
      UserError: there is no such file, or no image in it.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = name or str(file)
    bombs = Image.DecompressionBombWarning, Image.DecompressionBombError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                return ImageOps.exif_transpose(image).copy()
    except FileNotFoundError:
        raise UserError(f"{name}: there is no such file") from None
    except UnidentifiedImageError:
        raise UserError(f"{name}: it is not an image, or of a format that is not known") from None
    except (OSError, SyntaxError, ValueError, EOFError, *bombs) as error:
        raise UserError(f"{name}: it cannot be read as an image ({first_line(error)})") from None


def as_pixels(image: Any, size: int, channels: int) -> np.ndarray:
    """The central square of a Pillow image, scaled, as (size, size, channels) uint8: grey with 1 channel, RGB
    with 3. 16-bit values keep their upper 8 bits; transparent pixels become white."""
    from PIL import Image

    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "LAB":
        image = image.convert("RGB")  # Pillow converts it to no other
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        side, (w, h) = min(image.size), image.size
        left, top = (w - side) // 2, (h - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize(
            (size, size), Image.Resampling.BICUBIC
        )
    return np.asarray(image, np.uint8).reshape(size, size, channels)


def save_pixels(pixels_hwc: np.ndarray, path: Path) -> None:
    """Writes pixels to a PNG file, from which `as_pixels` reads the same pixels."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_hwc[..., 0] if pixels_hwc.shape[-1] == 1 else pixels_hwc).save(path, "PNG")
