import msgspec
import pytest
import torch

from bayplan.planner.hardware.calibrate_links import Copy, measure_link, torch_copies
from bayplan.planner.hardware.calibration_effort import Effort
from bayplan.planner.hardware.timing import Stopwatch
from bayplan.schemas.hardware import Link

EFFORT = Effort(small_copy_bytes=1000, large_copy_bytes=9000, repeats=3)
LINK = Link(source="node0", target="node0/gpu0", bytes_per_second=5, latency_ns=6, group="gpu-switch0")


class Wire:
    """A clock that goes on by what each copy takes."""

    def __init__(self, times_ns: dict[int, int]) -> None:
        self.now_ns = 0
        self.times_ns = times_ns
        self.links: list[Link] = []

    def make(self, link: Link, num_bytes: int) -> Copy:
        self.links.append(link)

        def copy() -> None:
            self.now_ns += self.times_ns[num_bytes]

        return copy


@pytest.mark.parametrize(
    ("small_ns", "large_ns", "rate", "latency_ns"),
    [
        (1500, 9500, 10**9, 500),
        (1000, 9000, 10**9, 0),
        (900, 9000, 988_000_000, 0),  # less than its bytes take: no latency below zero
        (700, 700, 12_900_000_000, 0),
        (800, 700, 12_900_000_000, 0),
    ],
)
def test_rate_and_latency_follow_from_two_sizes(
    small_ns: int, large_ns: int, rate: int, latency_ns: int
) -> None:
    wire = Wire({1000: small_ns, 9000: large_ns})
    found = measure_link(LINK, wire.make, EFFORT, Stopwatch(lambda: wire.now_ns))
    assert found == Link(
        source="node0", target="node0/gpu0", bytes_per_second=rate, latency_ns=latency_ns, group="gpu-switch0"
    )
    assert wire.links == [LINK, LINK]


def test_torch_copies_the_bytes_that_it_is_asked_for() -> None:
    places = {"node0": torch.device("cpu"), "node0/gpu0": torch.device("cpu")}
    there = torch_copies(places)(LINK, 4096)()
    assert isinstance(there, torch.Tensor)
    assert (there.nbytes, there.sum().item()) == (4096, 4096)


@pytest.mark.parametrize(
    ("source", "target", "num_pinned"), [("node0", "node0/gpu0", 1), ("node0/gpu0", "node0", 0)]
)
def test_host_memory_is_pinned_for_an_accelerator(
    source: str, target: str, num_pinned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    places = {"node0": torch.device("cpu"), "node0/gpu0": torch.device("meta")}
    torch_copies(places)(msgspec.structs.replace(LINK, source=source, target=target), 64)
    assert [tensor.nbytes for tensor in pinned] == [64] * num_pinned
