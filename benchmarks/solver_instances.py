"""Which models are placed on which machines: the instances of the solver's benchmark.

Data, and how a machine is put together from the catalogue. Solves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.options import PlanOptions
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.types import Objective

MODELS = Path(__file__).resolve().parent.parent / "tests" / "data" / "models"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One placement problem."""

    model: str
    """Name of a config in `MODELS`."""
    machine: str
    """Key of `MACHINES`."""
    objective: Objective | None = None
    """None: `decode` where the model generates, else `prefill`."""
    format: str | None = None
    context: int | None = None
    batch: int = 1
    max_memory: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in tables and on the command line."""
        said = [self.model.partition("--")[2], self.machine]
        said += [str(part) for part in (self.objective, self.format) if part is not None]
        said += [] if self.context is None else [f"context={self.context}"]
        said += [] if self.batch == 1 else [f"batch={self.batch}"]
        sizes = {budget.partition("=")[2] for budget in self.max_memory}
        said += [f"gpu*={size}" for size in sizes] if len(sizes) == 1 else self.max_memory
        return "/".join(said)

    @property
    def config(self) -> Path:
        """The model's config file."""
        return MODELS / f"{self.model}.json"

    def options(self) -> PlanOptions:
        """Return what `bayplan plan` would be asked."""
        return PlanOptions(
            inventory=MACHINES[self.machine](),
            objective=self.objective,
            format=self.format,
            context=self.context,
            batch=self.batch,
            max_memory=self.max_memory,
        )


def _one(device: str, host_memory: str, *, cpu: str = "ryzen-9-7950x", disk: str = "7GB/s") -> Inventory:
    return declare_inventory([device], cpu=cpu, host_memory=host_memory, disk=disk)


def without_disk(inventory: Inventory) -> Inventory:
    """Return the same machine with nothing to stream from but host memory."""
    nodes = tuple(msgspec.structs.replace(node, disk=None) for node in inventory.nodes)
    return msgspec.structs.replace(inventory, nodes=nodes)


def with_switches(inventory: Inventory, devices_per_switch: int) -> Inventory:
    """Return the same machine with the host links of neighbouring accelerators behind one switch each."""
    links, number = [], 0
    for link in inventory.links:
        if link.source in {node.id for node in inventory.nodes}:
            links.append(msgspec.structs.replace(link, group=f"switch{number // devices_per_switch}"))
            number += 1
        else:
            links.append(link)
    return msgspec.structs.replace(inventory, links=tuple(links))


def with_slow_disk(inventory: Inventory) -> Inventory:
    """Return the same machine reading from a disk of 500 MB/s."""
    disk = Disk(read_bytes_per_second=500 * 10**6, latency_ns=100_000)
    nodes = tuple(msgspec.structs.replace(node, disk=disk) for node in inventory.nodes)
    return msgspec.structs.replace(inventory, nodes=nodes)


def _four() -> Inventory:
    return declare_inventory(["l4*4"], cpu="epyc-7742", host_memory="256GiB", disk="3GB/s")


def _eight(*, cpu: str | None = "xeon-8480", nodes: int = 1) -> Inventory:
    return declare_inventory(
        ["h100-80gb*8"],
        cpu=cpu,
        host_memory="2TiB",
        disk="7GB/s",
        nodes=nodes,
        network="50GB/s" if nodes > 1 else None,
    )


MACHINES: dict[str, Callable[[], Inventory]] = {
    "t4+32g": lambda: _one("t4", "32GiB", cpu="generic", disk="1GB/s"),
    "4090+64g": lambda: _one("rtx-4090", "64GiB"),
    "a100+t4": lambda: declare_inventory(
        ["a100-40gb", "t4"], cpu="epyc-7742", host_memory="128GiB", disk="3GB/s"
    ),
    "t4+4090": lambda: declare_inventory(
        ["t4", "rtx-4090"], cpu="ryzen-9-7950x", host_memory="96GiB", disk="3GB/s"
    ),
    "2x4090": lambda: declare_inventory(
        ["rtx-4090*2"], cpu="ryzen-9-7950x", host_memory="96GiB", disk="3GB/s"
    ),
    "4xl4": _four,
    "4xl4-switched": lambda: with_switches(_four(), 2),
    "8xh100": _eight,
    "8xh100-no-cpu": lambda: _eight(cpu=None),
    "2x8xh100": lambda: _eight(cpu=None, nodes=2),
    "2x8xh100-cpus": lambda: _eight(nodes=2),
    "2x8xa100-40": lambda: declare_inventory(
        ["a100-40gb*8"], host_memory="512GiB", disk="7GB/s", nodes=2, network="50GB/s"
    ),
    "m4-max": lambda: declare_inventory(["m4-max-128gb"], disk="5GB/s"),
    "m4-max+cpu": lambda: declare_inventory(["m4-max-128gb"], cpu="generic", disk="5GB/s"),
    "cpu-8g": lambda: declare_inventory(cpu="generic", host_memory="8GiB", disk="1GB/s"),
    "cpu-64g": lambda: declare_inventory(cpu="epyc-9354", host_memory="64GiB", disk="7GB/s"),
    "cpu-8g-slow-disk": lambda: with_slow_disk(declare_inventory(cpu="generic", host_memory="8GiB")),
    "4090+6g": lambda: _one("rtx-4090", "6GiB"),
    "4xl4+16g": lambda: declare_inventory(["l4*4"], cpu="generic", host_memory="16GiB", disk="3GB/s"),
    "4090+128g-no-disk": lambda: without_disk(_one("rtx-4090", "128GiB")),
    "4xl4-no-disk": lambda: without_disk(_four()),
    "4xl4-no-cpu": lambda: declare_inventory(["l4*4"], host_memory="256GiB", disk="3GB/s"),
}

_BY_MACHINE = {
    "t4+32g": (
        "google-bert--bert-base-cased",
        "openai-community--gpt2-xl",
        "openai--clip-vit-large-patch14",
        "meta-llama--Meta-Llama-3.1-8B",
        "google--t5-v1_1-xxl",
        "llava-hf--llava-1.5-7b-hf",
        "openai--gpt-oss-20b",
    ),
    "4090+64g": (
        "meta-llama--Llama-2-7b-hf",
        "google--gemma-3-27b-it",
        "Qwen--Qwen3-30B-A3B",
        "mistralai--Mixtral-8x7B-v0.1",
        "meta-llama--Meta-Llama-3.1-70B",
        "Qwen--Qwen3.5-27B",
    ),
    "a100+t4": ("meta-llama--Meta-Llama-3.1-70B", "Qwen--Qwen3.5-27B", "ai21labs--Jamba-v0.1"),
    "t4+4090": ("google--gemma-3-27b-it", "microsoft--Phi-3-mini-128k-instruct"),
    "4xl4": (
        "meta-llama--Meta-Llama-3.1-8B",
        "meta-llama--Meta-Llama-3.1-70B",
        "nvidia--Nemotron-H-56B-Base-8K",
        "Qwen--Qwen3-Next-80B-A3B-Instruct",
        "HuggingFaceM4--idefics-80b-instruct",
    ),
    "4xl4-switched": ("meta-llama--Meta-Llama-3.1-70B", "mistralai--Mixtral-8x7B-v0.1"),
    "8xh100": (
        "meta-llama--Meta-Llama-3.1-405B",
        "deepseek-ai--DeepSeek-V3",
        "moonshotai--Kimi-K2.5",
        "bigscience--bloom",
        "zai-org--GLM-4.5",
        "XiaomiMiMo--MiMo-V2-Flash",
    ),
    "8xh100-no-cpu": ("meta-llama--Meta-Llama-3.1-405B", "deepseek-ai--DeepSeek-V3", "bigscience--bloom"),
    "2x8xh100": (
        "meta-llama--Meta-Llama-3.1-405B",
        "deepseek-ai--DeepSeek-V3",
        "moonshotai--Kimi-K2.5",
    ),
    "2x8xh100-cpus": ("moonshotai--Kimi-K2.5",),
    "2x8xa100-40": ("meta-llama--Meta-Llama-3.1-405B", "deepseek-ai--DeepSeek-V3"),
    "m4-max": ("openai--gpt-oss-120b", "meta-llama--Meta-Llama-3.1-70B"),
    "m4-max+cpu": ("meta-llama--Meta-Llama-3.1-70B", "Qwen--Qwen3-30B-A3B"),
    "cpu-8g": (
        "facebook--opt-125m",
        "HuggingFaceTB--SmolLM3-3B",
        "meta-llama--Meta-Llama-3.1-8B",
        "EleutherAI--gpt-j-6b",
    ),
    "cpu-64g": ("mistralai--Mixtral-8x7B-v0.1", "Qwen--Qwen3-30B-A3B"),
    "cpu-8g-slow-disk": ("tiiuae--falcon-7b-instruct",),
    "4090+6g": ("google--gemma-3-27b-it", "meta-llama--Meta-Llama-3.1-70B"),
    "4xl4+16g": ("Qwen--Qwen3-Next-80B-A3B-Instruct",),
    "4090+128g-no-disk": ("mistralai--Mixtral-8x7B-v0.1", "google--gemma-3-27b-it"),
    "4xl4-no-disk": ("meta-llama--Meta-Llama-3.1-70B", "openai--gpt-oss-120b"),
    "4xl4-no-cpu": ("meta-llama--Meta-Llama-3.1-70B",),
}

_TIGHT = (
    ("openai-community--gpt2-xl", "4090+64g", ("gpu0=6.1GiB",)),
    ("meta-llama--Meta-Llama-3.1-8B", "4090+64g", ("gpu0=15.8GiB",)),
    ("meta-llama--Meta-Llama-3.1-8B", "2x4090", ("gpu0=8.2GiB", "gpu1=8.2GiB")),
    ("google--t5-v1_1-xxl", "2x4090", ("gpu0=22GiB", "gpu1=22GiB")),
    ("EleutherAI--gpt-j-6b", "2x4090", ("gpu0=12GiB", "gpu1=12GiB")),
    ("google--gemma-3-27b-it", "4xl4", ("gpu0=14GiB", "gpu1=14GiB", "gpu2=14GiB", "gpu3=14GiB")),
    ("mistralai--Mixtral-8x7B-v0.1", "8xh100", tuple(f"gpu{number}=12.5GiB" for number in range(8))),
    ("meta-llama--Meta-Llama-3.1-70B", "8xh100", tuple(f"gpu{number}=18.5GiB" for number in range(8))),
    ("microsoft--Phi-3-mini-128k-instruct", "t4+4090", ("gpu0=3GiB", "gpu1=6GiB")),
    ("google--gemma-2b-it", "2x4090", ("gpu0=3.7GiB", "gpu1=3.7GiB")),
)
"""Model, machine, and budgets that hold the model with little to spare."""

_SPECIAL = (
    Instance(model="meta-llama--Meta-Llama-3.1-70B", machine="4xl4", objective=Objective.PREFILL),
    Instance(model="meta-llama--Meta-Llama-3.1-8B", machine="t4+32g", objective=Objective.PREFILL),
    Instance(model="mistralai--Mixtral-8x7B-v0.1", machine="4090+64g", objective=Objective.PREFILL),
    Instance(model="meta-llama--Meta-Llama-3.1-405B", machine="8xh100", objective=Objective.PREFILL),
    Instance(model="HuggingFaceTB--SmolLM3-3B", machine="cpu-8g", objective=Objective.PREFILL),
    Instance(model="meta-llama--Meta-Llama-3.1-70B", machine="4xl4", objective=Objective.THROUGHPUT),
    Instance(model="bigscience--bloom", machine="8xh100", objective=Objective.THROUGHPUT),
    Instance(model="google--gemma-3-27b-it", machine="4090+64g", objective=Objective.LOAD),
    Instance(model="meta-llama--Meta-Llama-3.1-70B", machine="4xl4", format="auto"),
    Instance(model="meta-llama--Meta-Llama-3.1-70B", machine="4090+64g", format="auto"),
    Instance(model="meta-llama--Meta-Llama-3.1-70B", machine="a100+t4", format="bf16,nf4"),
    Instance(model="meta-llama--Meta-Llama-3.1-405B", machine="8xh100", format="bf16,int8,nf4"),
    Instance(model="mistralai--Mixtral-8x7B-v0.1", machine="4090+64g", format="auto"),
    Instance(model="google--t5-v1_1-xxl", machine="t4+32g", format="auto"),
    Instance(model="Qwen--Qwen2.5-VL-7B-Instruct", machine="t4+32g", format="auto"),
    Instance(model="meta-llama--Meta-Llama-3.1-8B", machine="cpu-8g", format="auto"),
    Instance(model="meta-llama--Meta-Llama-3.1-8B", machine="4090+64g", context=32_768, batch=2),
    Instance(model="microsoft--Phi-3-mini-128k-instruct", machine="t4+32g", context=65_536),
)

INSTANCES = (
    *(Instance(model=model, machine=machine) for machine, models in _BY_MACHINE.items() for model in models),
    *(Instance(model=model, machine=machine, max_memory=budgets) for model, machine, budgets in _TIGHT),
    *_SPECIAL,
)
