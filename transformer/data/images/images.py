"""Images with labels: from a config's `data` group to batches."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from transformer.config import Bounded, Fraction, Nonnegative, Place, Positive
from transformer.data.cache.disk_cache import build_once, data_folder, digest, load_array, load_values
from transformer.data.cache.token_cache import BAR
from transformer.data.corpus import SplitData, key_in_errors
from transformer.data.division import divided_line, tally_lines
from transformer.data.encoders.labels import count_labels, find_labels, number_labels
from transformer.data.images.image_sources import IMAGES, ImageFolder, Images, as_pixels, open_image
from transformer.data.loader import DataLoader, HostBatch, Rows
from transformer.data.overlap import Hashed, overlap_lines
from transformer.data.source_names import suggest_kind
from transformer.data.sources.base import share, split_and_source
from transformer.data.sources.options import Options
from transformer.errors import UserError

SHARES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
"""The share of each split in a data set without splits; image data sets are often small, so validation and
test get a tenth each."""

MIN_HASHED_IMAGES = 200
"""From this number on, images are split by hash, so that an image stays in its split when others are added;
fewer are sorted by hash and split by position, so that each split has its share."""


@dataclass(frozen=True)
class ImageDataConfig(Bounded):
    """Images with labels."""

    # digits, folder:PATH (a sub-folder of images per class), parquet:GLOB, hf:FOLDER or tfds:NAME
    source: Place = "digits"
    validation_source: Place = ""  # another source to validate on; "": a split of `source`
    overlap: Fraction = 0.0  # most of validation that may also be in training, as a share of its images
    image_field: str = "image"  # field of the image, in tfds, parquet and hf
    label_field: str = "label"  # field of the class, in tfds, parquet and hf
    image_size: Positive = 8  # side in pixels to which the central square of each image is scaled
    channels: Literal[1, 3] = 1  # 1: grey; 3: red, green and blue
    shift: int = 0  # augmentation: largest random translation, in pixels
    flip: bool = False  # augmentation: random horizontal flip
    cache_dir: Place = ""  # folder of prepared images; "": the user's cache
    workers: Nonnegative = 1  # threads that prepare batches ahead; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("source", "validation_source"):
            value = getattr(self, key)
            if (key == "source" or value) and value.partition(":")[0] not in IMAGES:
                raise UserError(f"{key}: {value!r}; {suggest_kind(value, IMAGES)}")
        if not 0 <= self.shift < self.image_size:
            raise UserError(f"shift: {self.shift}; expected 0 or more pixels, and fewer than the image has")

    def unread(self, more: Sequence[str]) -> dict[str, str]:
        """The keys that no source reads, of these and `more`: {key: "with ..."}."""
        names = [self.source, *filter(None, [self.validation_source]), *more]
        nameless = not any(name.startswith(("tfds:", "parquet:", "hf:")) for name in names)
        return dict.fromkeys(("image_field", "label_field"), f"with {', '.join(names)}") if nameless else {}


class ImageRows(Rows):
    """Images at random access, one per row: `images` (b, h, w, c) uint8, `labels` (b,) int32, and `weights`
    (b,) float32, 0 for rows of padding."""

    def __init__(self, images_nhwc: np.ndarray, labels_r: np.ndarray, indices: np.ndarray) -> None:
        """`indices` are those of the rows among all `images_nhwc`, a memory map; `labels_r` are the labels
        of the rows."""
        self._images, self._labels, self._kept = images_nhwc, labels_r, indices

    def __len__(self) -> int:
        return len(self._kept)

    def batch(self, rows: np.ndarray) -> HostBatch:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        real = rows >= 0
        places = np.maximum(rows, 0)
        return {
            "images": np.asarray(self._images[self._kept[places]])
            * real[:, None, None, None].astype(np.uint8),
            "labels": self._labels[places] * real.astype(np.int32),
            "weights": real.astype(np.float32),
        }

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the number, from 0, of its image among all of the source."""
        return [self._kept[row : row + 1] if row >= 0 else self._kept[:0] for row in rows]


class ImageData(SplitData):
    """The images of a config, scaled once and cached in the data folder as one array.

    Raises:
      UserError: the source is missing, unreadable or empty, or its labels are unusable.
    """

    kinds: Mapping[str, Any] = IMAGES
    lines = ""

    def __init__(self, config: ImageDataConfig, labels: Sequence[str] | None = None) -> None:
        """`labels` are those of the run folder; by default the training data determine them."""
        self.config = config
        self.folder = data_folder(config.cache_dir)
        if labels is None:
            labels = find_labels(names_of(*self._prepared("train")), "source")
        self.labels = list(labels)

    def kept(self) -> dict[str, Any]:
        """The names of the labels, in the order of the model's outputs."""
        return {"labels": self.labels}

    def rows(self, split: str) -> ImageRows:
        """The images of a split, prepared on first use.

        Raises:
          UserError: a label that the training data do not have.
        """
        folder, indices = self._prepared(split)
        with key_in_errors(self.key(split)):
            numbers = number_labels(names_of(folder, indices), self.labels, lambda i: self.places(split)[i])
        return ImageRows(load_array(folder / "images.npy"), numbers, indices)

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options: Any) -> DataLoader:
        """Batches of a split; `options` are those of `DataLoader`. Training batches (`repeat`) are
        augmented."""
        c = self.config
        changed = options.get("repeat") and (c.shift or c.flip)
        transform = Augmentation(seed, c.shift, c.flip) if changed else None
        return DataLoader(
            self.rows(split), batch_size, seed=seed, workers=c.workers, transform=transform, **options
        )

    def places(self, split: str) -> list[str]:
        """The locations of the images of a split: files, or indices in the source."""
        source, (_, indices) = self._open(split), self._prepared(split)
        return [source.place(int(index)) for index in indices]

    def label_counts(self, split: str) -> np.ndarray:
        """The number of images of each label in a split, (c,)."""
        return count_labels(names_of(*self._prepared(split)), self.labels)

    def asked(self, split: str) -> Sequence[ImageFolder]:
        """The images to answer for.

        Raises:
          UserError: the source is not a folder of files.
        """
        kind, _, argument = self.location(split).partition(":")
        if kind != "folder":
            raise UserError(
                f"--input: {self.location(split)}: its images are in no files; expected folder:PATH"
            )
        options = Options(self.folder, field=self.config.image_field)
        return [ImageFolder(argument, split, options, self.config.label_field)]

    def inputs(self, split: str) -> Iterator[str]:
        """The paths of the images of a split. Raises as `asked`."""
        return map(str, self.asked(split)[0].files)

    def read(self, path: str) -> np.ndarray:
        """(h, w, c) uint8: the image in a file, prepared like those of the source."""
        return as_pixels(open_image(path), self.config.image_size, self.config.channels)

    def sources(self, split: str) -> Sequence[Images]:
        """The images of a split, alone."""
        return [self._open(split)]

    def _open(self, split: str) -> Images:
        c, (part, source) = self.config, split_and_source(split)
        kind, _, argument = self.location(split).partition(":")
        if kind not in IMAGES:
            raise UserError(f"{source!r}: unknown source of images; {suggest_kind(source, IMAGES)}")
        with key_in_errors(self.key(split)):
            return IMAGES[kind](argument, part, Options(self.folder, field=c.image_field), c.label_field)

    def division(self) -> list[str]:
        """Lines on how images without splits are split, on what is left out of folders, and on what training
        and validation share."""
        more = tally_lines(self.tallies("train", "validation")) + overlap_lines(self)
        if self.config.validation_source or self._open("train").divided:
            return more
        shares_n = load_array(self._prepared("train")[0] / "shares.npy")
        return divided_line([len(divide(shares_n, split)) for split in SHARES]) + more

    def hashed(self, split: str) -> Hashed:
        """See `transformer.data.overlap`."""
        folder, indices = self._prepared(split)
        return load_array(folder / "shares.npy")[indices] + 1, self.places(split).__getitem__

    def _prepared(self, split: str) -> tuple[Path, np.ndarray]:
        """The folder of prepared images of the source, and the indices of those in the split."""
        c, (part, location) = self.config, split_and_source(split)
        source = self._open(split)
        with key_in_errors(self.key(split)):
            name = digest(source.identity, c.image_size, c.channels)
            folder = build_once(self.folder / "images" / name, lambda new: self._prepare(source, new))
            whole = source.divided or bool(c.validation_source) or bool(location)
            keys_n = load_array(folder / "shares.npy")
            indices = np.arange(len(keys_n)) if whole else divide(keys_n, part)
            if not len(indices):
                raise UserError(f"{source.name}: no images for {split}; give more, or data.validation_source")
        return folder, indices

    def _prepare(self, source: Images, new: Path) -> None:
        size, channels = self.config.image_size, self.config.channels
        count = len(source)
        if not count:
            raise UserError(f"{source.name}: no images")
        shape = (count, size, size, channels)
        images = np.lib.format.open_memmap(new / "images.npy", mode="w+", dtype=np.uint8, shape=shape)
        names, shares = [], np.zeros(count)
        for index in tqdm(range(count), f"preparing {source.name}", unit=" images", **BAR):
            key, image, label = source[index]
            images[index] = as_pixels(image, size, channels)
            shares[index] = share(key)
            names.append(label)
        images.flush()
        np.save(new / "shares.npy", shares)
        (new / "labels.json").write_text(json.dumps(names), encoding="utf-8")


class Augmentation:
    """Random translation of each image by up to `shift` pixels, with edge padding, and with `flip` a
    horizontal flip with probability 1/2.

    Random numbers depend only on (seed, place), so they are the same for any number of hosts and after
    resuming.
    Source: Krizhevsky et al. 2012, section 4.1; He et al. 2016, section 4.2.
    """

    def __init__(self, seed: int, shift: int, flip: bool) -> None:
        self.seed, self.shift, self.flip = seed, shift, flip

    def __call__(self, batch: HostBatch, places: np.ndarray) -> HostBatch:
        """The batch with augmented `images`."""
        images_bhwc = batch["images"]
        drawn_b3 = np.array([np.random.default_rng([self.seed, int(place)]).random(3) for place in places])
        moves_b2 = (drawn_b3[:, :2] * (2 * self.shift + 1)).astype(int) - self.shift
        h, w = images_bhwc.shape[1:3]
        rows_bh = np.clip(np.arange(h) + moves_b2[:, :1], 0, h - 1)
        columns_bw = np.clip(np.arange(w) + moves_b2[:, 1:], 0, w - 1)
        if self.flip:
            columns_bw = np.where(drawn_b3[:, 2:] < 0.5, columns_bw[:, ::-1], columns_bw)
        b = np.arange(len(places))[:, None, None]
        return batch | {"images": images_bhwc[b, rows_bh[:, :, None], columns_bw[:, None, :]]}


def divide(shares_n: np.ndarray, split: str) -> np.ndarray:
    """The indices of the images in a split, by their hashes in [0, 1); copies have the same hash."""
    (low, high), n = SHARES[split], len(shares_n)
    if n < MIN_HASHED_IMAGES:
        low, high = round(low * n), round(high * n)
        shares_n = np.searchsorted(np.sort(shares_n), shares_n)  # the place of the first copy
    return np.flatnonzero((low <= shares_n) & (shares_n < high))


def names_of(folder: Path, indices: np.ndarray) -> list[str]:
    """The labels of the images with these indices."""
    names = load_values(folder / "labels.json")
    return [names[index] for index in indices]
