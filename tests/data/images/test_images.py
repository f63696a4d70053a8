import io
import sys

import numpy as np
import pytest
from PIL import Image

from transformer.data.images.image_sources import as_pixels, open_image, save_pixels
from transformer.data.images.images import SHARES, Augmentation, ImageData, ImageDataConfig, divide
from transformer.errors import UserError


@pytest.fixture
def data(tmp_path):
    def make(source, labels=None, **keys):
        keys = {"image_size": 6, "cache_dir": str(tmp_path / "cache")} | keys
        return ImageData(ImageDataConfig(source=source, **keys), labels)

    return make


def write(folder, rng, classes=("cat", "dog"), count=20, size=(6, 6)):
    for label in classes:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return f"folder:{folder}"


def failure(make, *arguments, **keys):
    with pytest.raises(UserError) as error:
        made = make(*arguments, **keys)
        for split in SHARES:
            made.rows(split)
    assert "\n" not in str(error.value)
    return str(error.value)


def everything(rows):
    return rows.batch(np.arange(len(rows)))


def test_the_digits_are_divided_and_kept_as_they_are(data):
    from sklearn.datasets import load_digits

    digits, known = data("digits", image_size=8), {}
    for image, label in zip(*load_digits(return_X_y=True), strict=True):
        known[np.round(image * 255 / 16).astype(np.uint8).tobytes()] = str(label)
    assert len(known) == 1797 and digits.labels == [*map(str, range(10))]
    seen: set[bytes] = set()
    for split, (low, high) in SHARES.items():
        batch = everything(digits.rows(split))
        keys = {image.tobytes() for image in batch["images"]}
        assert [known[image.tobytes()] for image in batch["images"]] == [*map(str, batch["labels"])]
        assert not keys & seen and len(keys) / 1797 == pytest.approx(high - low, abs=0.03)
        assert np.array_equal(digits.label_counts(split), np.bincount(batch["labels"]))
        seen |= keys
    assert len(seen) == 1797


def test_a_folder_of_files(data, rng, tmp_path):
    source = write(tmp_path / "images", rng)
    (tmp_path / "images" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "images" / ".hidden").mkdir()
    made = data(source, channels=3)
    assert made.labels == ["cat", "dog"]
    found = {}
    for split, size in (("train", 32), ("validation", 4), ("test", 4)):
        batch = everything(made.rows(split))
        assert batch["images"].shape == (size, 6, 6, 3) and batch["images"].dtype == np.uint8
        found |= {i.tobytes(): n for i, n in zip(batch["images"], batch["labels"], strict=True)}
    for number, label in enumerate(made.labels):
        for file in (tmp_path / "images" / label).glob("*.png"):
            assert found.pop(np.asarray(Image.open(file)).tobytes()) == number
    assert not found
    again = data(source, channels=3)
    assert np.array_equal(everything(again.rows("test"))["images"], everything(made.rows("test"))["images"])


def test_copies_of_an_image_are_in_one_split(data, rng, tmp_path):
    source = write(tmp_path / "images", rng, count=120)
    for file in [*(tmp_path / "images" / "cat").glob("*.png")]:
        (file.parent / f"copy of {file.name}").write_bytes(file.read_bytes())
    made = data(source)
    rows = {split: {image.tobytes() for image in everything(made.rows(split))["images"]} for split in SHARES}
    assert sum(len(made.rows(split)) for split in SHARES) == 360
    assert sum(map(len, rows.values())) == len(set.union(*rows.values())) == 240


@pytest.mark.parametrize("count", [3, 7, 60, 150])
@pytest.mark.parametrize("copies", [2, 3])
def test_copies_are_in_one_split_however_few_images_there_are(rng, count, copies):
    shares = rng.permutation(np.repeat(rng.random(count), copies))
    parts = [divide(shares, split) for split in SHARES]
    assert sorted(np.concatenate(parts)) == [*range(count * copies)]
    assert sum(len({*shares[part]}) for part in parts) == count


@pytest.mark.parametrize("count", [7, 199, 200, 2000])
def test_every_image_is_in_one_split(rng, count):
    shares = rng.random(count)
    parts = [divide(shares, split) for split in SHARES]
    assert sorted(np.concatenate(parts)) == [*range(count)]
    if count >= 200:  # those that come later move none
        more = np.concatenate([shares, rng.random(50)])
        assert all(set(part) <= set(divide(more, split)) for part, split in zip(parts, SHARES, strict=True))


def test_a_validation_source_is_all_of_it(data, rng, tmp_path):
    train = write(tmp_path / "train", rng, count=10)
    held_out = write(tmp_path / "held", rng, classes=("dog",), count=5)
    made = data(train, validation_source=held_out)
    assert [len(made.rows(split)) for split in SHARES] == [20, 5, 5]
    assert set(everything(made.rows("test"))["labels"]) == {1}
    unknown = write(tmp_path / "unknown", rng, classes=("cow", "dog"), count=3)
    file = tmp_path / "unknown" / "cow" / "0.png"
    expected = f"data.validation_source: {file} has the label 'cow'; those of the training data"
    assert expected in failure(data, train, validation_source=unknown)


def test_padding_weighs_nothing(data, rng, tmp_path):
    made = data(write(tmp_path / "images", rng, count=4), channels=3)
    loader = made.loader("validation", 8)
    batch = loader.batch_at(0)
    assert batch["weights"].sum() == len(made.rows("validation")) == 1
    assert not batch["images"][1:].any() and batch["images"][0].any()


def test_what_is_drawn_depends_on_the_place_alone(data, rng, tmp_path):
    """On the whole batch and on the parts of several hosts, and however often it is asked for."""
    made = data(write(tmp_path / "images", rng), channels=3, shift=2, flip=True)
    options = {"seed": 5, "shuffle": True, "repeat": True}
    whole = made.loader("train", 8, **options)
    parts = [made.loader("train", 8, needed=rows, **options) for rows in np.split(np.arange(8), 4)]
    for step in (3, 0, 9):
        batch = whole.batch_at(step)
        joined = [part.batch_at(step) for part in parts]
        for name, array in batch.items():
            assert np.array_equal(array, np.concatenate([part[name] for part in joined])), name
    plain = data(f"folder:{tmp_path / 'images'}", channels=3).loader("train", 8, **options)
    assert not np.array_equal(plain.batch_at(0)["images"], whole.batch_at(0)["images"])
    assert np.array_equal(plain.batch_at(0)["labels"], whole.batch_at(0)["labels"])
    other = made.loader("train", 8, **options | {"seed": 6})
    assert not np.array_equal(other.batch_at(0)["images"], whole.batch_at(0)["images"])
    for split in ("validation", "test"):
        assert np.array_equal(
            made.loader(split, 4).batch_at(0)["images"], everything(made.rows(split))["images"]
        )


@pytest.mark.parametrize(("shift", "flip"), [(2, False), (0, True), (1, True)])
def test_an_image_is_moved_and_mirrored_and_nothing_else(rng, shift, flip):
    images = rng.integers(0, 256, (64, 5, 7, 3), np.uint8)
    changed = Augmentation(3, shift, flip)({"images": images}, np.arange(64))["images"]
    drawn = set()
    for image, result in zip(images, changed, strict=True):
        padded = np.pad(image, ((shift, shift), (shift, shift), (0, 0)), mode="edge")
        possible = {
            (y, x, mirrored): padded[y : y + 5, x : x + 7][:, :: -1 if mirrored else 1].tobytes()
            for y in range(2 * shift + 1)
            for x in range(2 * shift + 1)
            for mirrored in range(1 + flip)
        }
        found = [drawing for drawing, pixels in possible.items() if pixels == result.tobytes()]
        assert found
        drawn.update(found)
    assert len(drawn) > 0.7 * len(possible)  # each is drawn now and then


def test_images_of_any_kind_become_pixels(rng, tmp_path):
    grey = rng.integers(0, 256, (6, 6), np.uint8)
    assert np.array_equal(as_pixels(Image.fromarray(grey), 6, 1)[..., 0], grey)
    assert np.array_equal(as_pixels(Image.fromarray(grey), 6, 3), np.stack([grey] * 3, axis=-1))
    sixteen = Image.fromarray(grey.astype(np.uint16) * 257)
    assert np.array_equal(as_pixels(sixteen, 6, 1)[..., 0], grey)
    glass = Image.fromarray(np.dstack([grey] * 3 + [np.zeros_like(grey)]))
    assert (as_pixels(glass, 6, 3) == 255).all()
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 200  # the middle square
    assert (as_pixels(Image.fromarray(wide), 2, 1) == 200).all()
    turned = Image.fromarray(grey[:4])
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(np.asarray(open_image(tmp_path / "turned.png")), np.rot90(grey[:4], -1))
    white = Image.new("LAB", (6, 6), (255, 128, 128))
    for channels in (1, 3):
        assert (as_pixels(white, 6, channels) >= 254).all()
        pixels = rng.integers(0, 256, (6, 6, channels), np.uint8)
        save_pixels(pixels, tmp_path / "new" / "saved.png")
        assert np.array_equal(as_pixels(open_image(tmp_path / "new" / "saved.png"), 6, channels), pixels)


def test_what_is_wrong_with_a_folder_is_one_line(data, rng, tmp_path):
    assert "data.source: folder:/no/such: there is no such folder" in failure(data, "folder:/no/such")
    assert "there is no such folder" in failure(data, "folder:")
    (tmp_path / "file").write_text("")
    assert "it is a file" in failure(data, f"folder:{tmp_path / 'file'}")
    (tmp_path / "empty").mkdir()
    assert "no sub-folder in it; each is to be a class" in failure(data, f"folder:{tmp_path / 'empty'}")
    write(tmp_path / "deep" / "train", rng, count=1)
    expected = "no image in its sub-folder 'train'; if its sub-folders are the classes, folder:"
    assert expected in failure(data, f"folder:{tmp_path / 'deep'}")
    one = write(tmp_path / "one", rng, classes=("cat",))
    assert "data.source: all training data have the label 'cat'; expected two or more" in failure(data, one)
    few = write(tmp_path / "few", rng, count=1)
    assert "no images for validation; give more, or data.validation_source" in failure(data, few)
    bad = write(tmp_path / "bad", rng)
    (tmp_path / "bad" / "dog" / "x.png").write_text("no image")
    assert "bad/dog/x.png: it is not an image, or of a format that is not known" in failure(data, bad)
    image = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (60, 60, 3), np.uint8)).save(image, "PNG")
    (tmp_path / "bad" / "dog" / "x.png").write_bytes(image.getvalue()[:3000])
    assert "x.png: it cannot be read as an image (" in failure(data, bad)
    assert not [*(tmp_path / "cache" / "images").glob("*.new*")]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"source": "cifar"},
            "source: 'cifar'; expected one of digits, folder, tfds, parquet, hf, then :PATH or :NAME",
        ),
        ({"validation_source": "x:y"}, "validation_source: 'x:y'; expected one of digits"),
        ({"image_size": 0}, "image_size: 0; expected at least 1"),
        ({"shift": 8}, "shift: 8; expected 0 or more pixels, and fewer than the image has"),
        ({"workers": -1}, "workers: -1; expected"),
    ],
)
def test_impossible_keys(keys, expected):
    with pytest.raises(UserError, match="^" + expected):
        ImageDataConfig(**keys)


def test_digits_take_no_argument_and_need_scikit_learn(data, monkeypatch):
    assert "digits:x: digits takes no argument" in failure(data, "digits:x")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "digits: it comes with scikit-learn: `pip install scikit-learn`" in failure(data, "digits")


def define(name, as_arrays=False, **splits):
    """A builder of TFDS; `splits` say how many images each has. Arrays are what TensorFlow is needed for."""
    import tensorflow_datasets as tfds

    def info(self):
        image = tfds.features.Image(shape=(6, 6, 1))
        features = {"image": image, "label": tfds.features.ClassLabel(names=["ant", "bee"])}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def generate(split):
        for i in range(splits[split]):
            pixels = np.full((6, 6, 1), i, np.uint8)
            yield i, {"image": pixels if as_arrays else Image.fromarray(pixels[..., 0]), "label": i % 2}

    body = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": lambda self, manager: {split: generate(split) for split in splits},
        "_generate_examples": None,
        "__module__": name,
    }
    return type(name, (tfds.core.GeneratorBasedBuilder,), body)


def test_any_builder_of_tfds(data):
    define("ImagesOfTwoKinds", train=100, test=10)
    made = data("tfds:images_of_two_kinds")
    assert made.labels == ["ant", "bee"]
    assert [len(made.rows(split)) for split in SHARES] == [95, 5, 10]
    for split in SHARES:
        batch = everything(made.rows(split))
        assert np.array_equal(batch["images"][:, 0, 0, 0] % 2, batch["labels"])
        assert (batch["images"] == batch["images"][:, :1, :1]).all()
    assert "tensorflow" not in sys.modules
    expected = "data.source: tfds:images_of_two_kinds: no field 'picture'; fields there: image, label"
    assert expected in failure(data, "tfds:images_of_two_kinds", image_field="picture")
    expected = "tfds:images_of_two_kinds (train): no label_field 'kind'; fields there: image, label"
    assert expected in failure(data, "tfds:images_of_two_kinds", label_field="kind")
    expected = "its field 'label' is not an image of 8-bit pixels"
    assert expected in failure(data, "tfds:images_of_two_kinds", image_field="label")


def test_a_builder_that_needs_tensorflow_says_so(data):
    define("ImagesAsArrays", as_arrays=True, train=3)
    assert "data.source: tfds:images_as_arrays: preparing it (once) needs tensorflow: `pip" in failure(
        data, "tfds:images_as_arrays"
    )
    assert "data.source: tfds:mnist_of_mars: no such data set" in failure(data, "tfds:mnist_of_mars")
