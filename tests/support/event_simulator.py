"""A second simulator of the prefetch pipeline, made from its description and sharing no code with the first.

Time goes forward from event to event; couriers, links and the model's own thread each look at what they may
do now. Slow and simple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.planner.solve.simulate import Visit


class _Courier:
    """Brings one device's streamed blocks in, in order, each into its slot."""

    def __init__(self, visits: list[Visit], num_slots: int) -> None:
        self.visits = visits
        self.slot_of = [number % num_slots for number in range(len(visits))]
        self.free_since: list[int | None] = [0] * num_slots
        self.started = 0
        self.arrived = 0
        self.busy_until: int | None = None

    @property
    def next_slot(self) -> int:
        return self.slot_of[self.started % len(self.visits)]

    @property
    def next_visit(self) -> Visit:
        return self.visits[self.started % len(self.visits)]


def step_ends(visits: Sequence[Visit], num_slots: Mapping[str, int], num_steps: int) -> list[int]:
    """Return when each of `num_steps` steps ends, in nanoseconds."""
    couriers = {
        device: _Courier(
            [visit for visit in visits if visit.device == device and visit.transfer_ns is not None],
            num_slots.get(device, 1),
        )
        for device in {visit.device for visit in visits if visit.transfer_ns is not None}
    }
    # The model's thread as small actions: wait for a while, need a block, give its slot back, end a step.
    actions: list[tuple[str, str, int]] = []
    consumed = dict.fromkeys(couriers, 0)
    for _ in range(num_steps):
        for visit in visits:
            actions.append(("wait", "", visit.hop_ns))
            if visit.transfer_ns is None:
                actions.append(("wait", "", visit.compute_ns))
                continue
            number = consumed[visit.device]
            consumed[visit.device] += 1
            actions.append(("need", visit.device, number))
            actions.append(("wait", "", visit.compute_ns))
            actions.append(("release", visit.device, number))
        actions.append(("end", "", 0))
    now, position, waiting_until = 0, 0, 0
    ends: list[int] = []
    while position < len(actions):
        _arrive(couriers, now)
        while position < len(actions) and waiting_until <= now:
            kind, device, value = actions[position]
            if kind == "need" and couriers[device].arrived <= value:
                break
            if kind == "wait":
                waiting_until = now + value
            elif kind == "release":
                courier = couriers[device]
                courier.free_since[courier.slot_of[value % len(courier.visits)]] = now
            elif kind == "end":
                ends.append(now)
            position += 1
        _start(couriers, now)
        pending = [courier.busy_until for courier in couriers.values() if courier.busy_until is not None]
        if waiting_until > now:
            pending.append(waiting_until)
        if position < len(actions):
            now = min(pending)
    return ends


def _arrive(couriers: Mapping[str, _Courier], now: int) -> None:
    for courier in couriers.values():
        if courier.busy_until is not None and courier.busy_until <= now:
            courier.busy_until = None
            courier.arrived += 1


def _start(couriers: Mapping[str, _Courier], now: int) -> None:
    """Give every idle link to the courier that has been able to start for longest."""
    while True:
        busy = {
            courier.visits[(courier.started - 1) % len(courier.visits)].link
            for courier in couriers.values()
            if courier.busy_until is not None
        }
        able: list[tuple[int, str]] = []
        for device, courier in couriers.items():
            since = courier.free_since[courier.next_slot]
            if courier.busy_until is None and since is not None and courier.next_visit.link not in busy:
                able.append((since, device))
        if not able:
            return
        courier = couriers[min(able)[1]]
        transfer_ns = courier.next_visit.transfer_ns
        assert transfer_ns is not None
        courier.free_since[courier.next_slot] = None
        courier.busy_until = now + transfer_ns
        courier.started += 1
