"""A second simulator of the prefetch pipeline, made from its description and sharing no code with the first.

Time goes forward from event to event. The model's own thread is a list of small actions; every transfer is a
job; at each event it is worked out anew which jobs are served. Slow and simple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.planner.solve.simulate import Transfer, Visit


class _Job:
    """One transfer, from when it has a slot until it has arrived."""

    def __init__(self, device: int, transfer: Transfer, urgency: tuple[int, int]) -> None:
        self.device = device
        self.left_ns = transfer.duration_ns
        self.needs = {f"courier of {device}", *transfer.resources}
        self.urgency = urgency
        """Step and place of the visit that needs it."""


class _Ring:
    """One device's streamed visits, in order, each with its slot."""

    def __init__(self, visits: Sequence[Visit], device: int, num_slots: int) -> None:
        self.device = device
        self.places = [
            place
            for place, visit in enumerate(visits)
            if visit.device == device and visit.transfer is not None
        ]
        self.slot_of = [number % num_slots for number in range(len(self.places))]
        self.is_free = [True] * num_slots
        self.begun = 0
        self.arrived = 0
        self.job: _Job | None = None

    def begin(self, visits: Sequence[Visit]) -> None:
        """Make a job of the next transfer, if there is none and its slot is free."""
        if self.job is not None or not self.places:
            return
        step, number = divmod(self.begun, len(self.places))
        if self.is_free[self.slot_of[number]]:
            self.is_free[self.slot_of[number]] = False
            self.begun += 1
            place = self.places[number]
            transfer = visits[place].transfer
            assert transfer is not None
            self.job = _Job(self.device, transfer, (step, place))


class _Pipeline:
    """Time, the model's thread and all transfers."""

    def __init__(self, visits: Sequence[Visit], num_slots: Mapping[int, int]) -> None:
        self.visits = visits
        self.rings = {
            device: _Ring(visits, device, num_slots.get(device, 1))
            for device in sorted({visit.device for visit in visits})
        }
        self.fetch: _Job | None = None
        self.now = 0
        self.waiting_until = 0
        self.ends: list[int] = []

    def act(self, kind: str, visit: Visit, value: int) -> bool:
        """Do an action of the model's thread if it can be done now, and return whether."""
        ring = self.rings[visit.device]
        if kind == "need":
            return ring.arrived > value
        if kind == "fetched":
            return self.fetch is None
        if kind == "wait":
            self.waiting_until = self.now + value
        elif kind == "release":
            ring.is_free[ring.slot_of[value % len(ring.places)]] = True
        elif kind == "end":
            self.ends.append(self.now)
        elif visit.fetch is not None:
            self.fetch = _Job(visit.device, visit.fetch, (-1, 0))
        return True

    def go_on(self) -> None:
        """Let time pass until something happens."""
        for ring in self.rings.values():
            if self.fetch is None or self.fetch.device != ring.device:
                ring.begin(self.visits)
        jobs = [ring.job for ring in self.rings.values()] + [self.fetch]
        served = _served([job for job in jobs if job is not None])
        events = [self.now + job.left_ns for job in served]
        until = min(events + [self.waiting_until] * (self.waiting_until > self.now))
        for job in served:
            job.left_ns -= until - self.now
            if job.left_ns:
                continue
            if job is self.fetch:
                self.fetch = None
            else:
                self.rings[job.device].job = None
                self.rings[job.device].arrived += 1
        self.now = until


def step_ends(visits: Sequence[Visit], num_slots: Mapping[int, int], num_steps: int) -> list[int]:
    """Return when each of `num_steps` steps ends, in nanoseconds; every transfer takes one at least."""
    pipeline = _Pipeline(visits, num_slots)
    actions = _actions(visits, num_steps)
    position = 0
    while position < len(actions):
        if pipeline.waiting_until <= pipeline.now and pipeline.act(*actions[position]):
            position += 1
        else:
            pipeline.go_on()
    return pipeline.ends


def _served(jobs: list[_Job]) -> list[_Job]:
    """Return the jobs that go on now: the most urgent first, others beside it if they need nothing of it."""
    taken: set[str] = set()
    served = []
    for job in sorted(jobs, key=lambda one: one.urgency):
        if not job.needs & taken:
            taken |= job.needs
            served.append(job)
    return served


def _actions(visits: Sequence[Visit], num_steps: int) -> list[tuple[str, Visit, int]]:
    """Return the model's thread as small actions: wait, need a block, give its slot back, end a step."""
    actions: list[tuple[str, Visit, int]] = []
    consumed: dict[int, int] = {}
    for _ in range(num_steps):
        for visit in visits:
            number = consumed.get(visit.device, 0)
            actions.append(("wait", visit, visit.hop_ns))
            if visit.transfer is not None:
                consumed[visit.device] = number + 1
                actions.append(("need", visit, number))
            actions.append(("wait", visit, visit.compute_ns))
            if visit.transfer is not None:
                actions.append(("release", visit, number))
            if visit.fetch is not None:
                actions.append(("fetch", visit, 0))
                actions.append(("wait", visit, visit.fetched_compute_ns))
                actions.append(("fetched", visit, 0))
        actions.append(("end", visits[-1], 0))
    return actions
