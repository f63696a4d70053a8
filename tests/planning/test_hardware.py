"""Times of collectives between devices, against sums by hand."""

import types

import numpy as np
import pytest

from transformer.errors import UserError
from transformer.planning import hardware
from transformer.planning.collectives import Collective
from transformer.planning.hardware import CHIPS, chip_of, duration

GB = 10**9


def gpus(hosts, each):
    return [
        types.SimpleNamespace(platform="gpu", process_index=i // each, device_kind="NVIDIA H100 80GB HBM3")
        for i in range(hosts * each)
    ]


def tpus(*shape, slices=1):
    places = [tuple(map(int, place)) for place in np.ndindex(*shape)]
    return [
        types.SimpleNamespace(platform="tpu", coords=place, slice_index=number, device_kind="TPU v5")
        for number in range(slices)
        for place in places
    ]


MANY = 10**6


def seconds(operation, groups, chip, devices, size=8 * GB):
    """For a millionth of an array that is too large for its latency to count."""
    link, whole = duration(Collective(operation, size * MANY, np.asarray(groups)), CHIPS[chip], devices)
    return link, whole / MANY


@pytest.mark.parametrize(
    ("operation", "groups", "hosts", "near", "far"),
    [
        ("all-gather", [range(8)], 1, 7, 0),
        ("reduce-scatter", [range(32)], 4, 28, 3),
        ("all-reduce", [range(32)], 4, 56, 6),
        ("all-gather", np.arange(32).reshape(4, 8).T, 4, 0, 3),  # one of each host
        ("collective-permute", [[0, 1]], 1, 1, 0),
        ("collective-permute", [[0, 8]], 2, 0, 1),
    ],
)
def test_each_step_of_a_ring_of_gpus_takes_its_time(operation, groups, hosts, near, far):
    devices, rate = gpus(hosts, 8), seconds(operation, groups, "h100", gpus(hosts, 8))[1] / (8 * GB)
    for size in (0, 10**5, 10**6, 10**7, 10**8):
        moved = Collective(operation, size, np.asarray(groups))
        low = 0.53 * (6.6 + 0.6 * near + 2.7 * far) + 1e6 * rate * size * 2
        middle = 0.53 * (14.0 + 1.9 * near + 4.0 * far) + 1e6 * rate * size * 128 / 120
        high = 0.53 * (8.4 + 3.4 * near + 14.0 * far) + 1e6 * rate * size
        assert duration(moved, CHIPS["h100"], devices)[1] == pytest.approx(1e-6 * min(low, middle, high))


def test_within_a_host():
    """7/8 of the bytes at 450 GB/s; an all-reduce sends them twice."""
    link, once = seconds("all-gather", [range(8)], "h100", gpus(1, 8))
    assert link == "NVLink"
    assert once == pytest.approx(8 * 7 / 8 / 450)
    assert seconds("all-reduce", [range(8)], "h100", gpus(1, 8))[1] == pytest.approx(2 * once)


def test_between_hosts_all_network_cards_of_a_group_share_the_work():
    """3 of 4 hosts' parts come in through 4 cards of 50 GB/s; with one GPU of each host through one."""
    link, together = seconds("all-gather", [range(16)], "h100", gpus(4, 4))
    assert link == "network"
    assert together == pytest.approx(8 * 3 / 4 / (4 * 50))
    assert seconds("all-reduce", [range(16)], "h100", gpus(4, 4))[1] == pytest.approx(2 * together)
    assert seconds("all-gather", [range(32)], "h100", gpus(4, 8)) == (
        "NVLink",
        pytest.approx(8 * 31 / 32 / 450),
    )
    one_each = np.arange(32).reshape(4, 8).T
    assert seconds("all-gather", one_each, "h100", gpus(4, 8))[1] == pytest.approx(8 * 3 / 4 / 50)
    assert seconds("all-to-all", one_each, "h100", gpus(4, 8))[1] == pytest.approx(8 * 3 / 4 / 50)
    assert seconds("collective-permute", [[0, 8]], "h100", gpus(4, 8))[1] == pytest.approx(8 / 50)


def test_the_slowest_group_counts():
    devices = gpus(2, 2)
    link, found = seconds("all-gather", [[0, 1], [0, 2]], "h100", devices)
    assert (link, found) == ("network", pytest.approx(8 / 2 / 50))


def test_rings_of_a_torus():
    """Both ways along each axis that a group spans, 100 GB/s a link, where the ends are joined."""
    devices = tpus(4, 4, 4)
    places = np.arange(64).reshape(4, 4, 4)
    for groups, links, ways in [
        (places.reshape(16, 4), 2, 4),
        (places.reshape(4, 16), 4, 16),
        (places.reshape(1, 64), 6, 64),
        (places[..., :2].reshape(16, 2), 1, 2),
    ]:
        link, found = seconds("all-gather", groups, "v5p", devices)
        assert link == "ICI"
        assert found == pytest.approx(8 * (ways - 1) / ways / (links * 100))


def test_the_ends_of_a_small_v5e_are_not_joined():
    devices = tpus(4, 4)
    assert seconds("all-gather", [range(0, 16, 4)], "v5e", devices)[1] == pytest.approx(8 * 3 / 4 / 50)
    large = tpus(16, 16)
    assert seconds("all-gather", [range(16)], "v5e", large)[1] == pytest.approx(8 * 15 / 16 / 100)


def test_two_devices_of_a_chip_share_its_links():
    """100 GB/s a link and chip of a TPU7x: alone a device has half of it, and both together all of it."""
    places = [tuple(map(int, place)) for place in np.ndindex(2, 2, 1) for _ in range(2)]
    devices = [types.SimpleNamespace(platform="tpu", coords=place, slice_index=0) for place in places]
    assert seconds("all-gather", [range(8)], "tpu7x", devices)[1] == pytest.approx(8 * 7 / 8 / (2 * 100))
    assert seconds("all-gather", [[0, 2]], "tpu7x", devices)[1] == pytest.approx(8 / 2 / 50)
    assert seconds("all-gather", [[0, 1]], "tpu7x", devices)[1] == pytest.approx(8 / 2 / 600)


def test_a_permute_goes_the_short_way_round():
    devices = tpus(4, 4, 4)
    assert seconds("collective-permute", [[0, 1]], "v5p", devices)[1] == pytest.approx(8 / 100)
    assert seconds("collective-permute", [[3, 0]], "v5p", devices)[1] == pytest.approx(8 / 100)
    assert seconds("collective-permute", [[0, 2]], "v5p", devices)[1] == pytest.approx(16 / 100)


def test_between_slices():
    """Each of two chips gets half through a link of 6.25 GB/s; two slices of 64 have 64 of them."""
    devices = tpus(4, 4, 4, slices=2)
    link, found = seconds("all-reduce", [[0, 64]], "v5p", devices)
    assert (link, found) == ("network", pytest.approx(2 * 8 / 2 / 6.25))
    link, found = seconds("all-reduce", [range(128)], "v5p", devices)
    assert (link, found) == ("ICI", pytest.approx(2 * 8 * 127 / 128 / 600))


def test_alone_nothing_is_sent():
    assert seconds("all-reduce", [[0]], "v5p", tpus(1, 1, 1))[1] == 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("TPU7x", "tpu7x"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("cpu", None),
    ],
)
def test_kinds_of_devices(kind, name):
    found = chip_of([types.SimpleNamespace(device_kind=kind)])
    assert found is (CHIPS[name] if name else None)


@pytest.mark.parametrize(
    "topology",
    ["h100", "h100:", "h900:8", "v5p:4x", "v5p:4x4x4x4", "h100:8x8 ", "h100:0x8", "h100:2x2x2", "v5p:4x0x4"],
)
def test_unknown_topologies(topology):
    with pytest.raises(
        UserError, match="expected one of h100, h200, b200, gb200, v5e, v5p, v6e, tpu7x with a shape"
    ):
        hardware.prepare(topology)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"libtpu; in an environment of its own, pip install -r r"):
        hardware.prepare("v5e:4x4")
    with pytest.raises(UserError, match="jax_cuda13_plugin"):
        hardware.prepare("h100:8x8")


def test_programs_use_three_quarters_of_a_gpu_or_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert CHIPS["h100"].usable == 0.75 * CHIPS["h100"].memory
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    assert CHIPS["h100"].usable == 0.92 * CHIPS["h100"].memory
    assert CHIPS["v5p"].usable == CHIPS["v5p"].memory


def test_products_of_halves_are_twice_as_fast_on_gpus():
    assert CHIPS["h200"].flops("bf16") == CHIPS["h200"].flops("f16") == 2 * CHIPS["h200"].flops("f32")
    assert CHIPS["v5e"].flops("bf16") == CHIPS["v5e"].flops("f32") == 197e12
