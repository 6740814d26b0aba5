from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayplan.planner.hardware import accelerator_signs
from bayplan.planner.hardware.accelerator_signs import may_have_accelerator, torch_backends

ALL_BACKENDS = 'cuda: Optional[str] = "12.8"\nhip = "6.3"\nxpu = "2025"\n'


@pytest.fixture(autouse=True)
def _plain_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(accelerator_signs, "entry_points", lambda group: ())


def install_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None) -> None:
    """Let the installed torch be one whose `version.py` holds this text; None: it has none."""
    folder = tmp_path / "site" / "torch"
    folder.mkdir(parents=True)
    if version is not None:
        (folder / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def machine(tmp_path: Path, *files: str) -> Path:
    """Return the root of a machine that shows these files."""
    root = tmp_path / "root"
    for file in ("dev/null", "proc/cpuinfo", *files):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


@pytest.mark.parametrize(
    ("file", "backend"),
    [
        ("dev/nvidia0", "cuda"),
        ("dev/nvidiactl", "cuda"),
        ("dev/nvidia-caps/nvidia-cap1", "cuda"),
        ("dev/nvhost-gpu", "cuda"),
        ("dev/nvmap", "cuda"),
        ("dev/nvgpu/igpu0/ctrl", "cuda"),
        ("proc/driver/nvidia/version", "cuda"),
        ("dev/dxg", "cuda"),
        ("dev/kfd", "hip"),
        ("dev/dxg", "hip"),
        ("dev/dri/renderD128", "xpu"),
        ("dev/dxg", "xpu"),
    ],
)
def test_a_device_counts_where_torch_is_built_for_it(
    file: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, file)
    lines = {name: f"{name} = None\n" for name in ("cuda", "hip", "xpu")}
    install_torch(monkeypatch, tmp_path, "".join((lines | {backend: f"{backend} = '1.0'\n"}).values()))
    assert may_have_accelerator(root)
    (tmp_path / "site" / "torch" / "version.py").write_text("".join(lines.values()))
    assert not may_have_accelerator(root)


def test_no_device_for_any_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(monkeypatch, tmp_path, ALL_BACKENDS)
    assert not may_have_accelerator(machine(tmp_path))


@pytest.mark.parametrize(
    "version",
    [None, "cuda = None\nhip = None\n", "cuda = find()\nhip = None\nxpu = None\n", "def", "cuda\0"],
    ids=["no file", "a name is missing", "computed", "not Python", "a null byte"],
)
def test_where_torch_does_not_say_every_device_counts(
    version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch(monkeypatch, tmp_path, version)
    assert torch_backends() is None
    assert may_have_accelerator(machine(tmp_path, "dev/kfd"))


def test_torch_that_is_not_installed_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_backends() is None


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT"])
def test_a_library_put_in_between_may_bring_a_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch(monkeypatch, tmp_path, ALL_BACKENDS)
    monkeypatch.setenv(name, "/usr/lib/remote_gpu.so")
    assert may_have_accelerator(machine(tmp_path))


def test_an_extension_of_torch_may_bring_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_torch(monkeypatch, tmp_path, ALL_BACKENDS)
    groups: list[str] = []

    def found(group: str) -> tuple[str, ...]:
        groups.append(group)
        return ("torch_npu",)

    monkeypatch.setattr(accelerator_signs, "entry_points", found)
    assert may_have_accelerator(machine(tmp_path))
    assert groups == ["torch.backends"]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_always_count(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert may_have_accelerator(machine(tmp_path))


def test_the_installed_torch_says_what_it_is_built_for() -> None:
    import torch

    built = {"cuda": torch.version.cuda, "hip": torch.version.hip, "xpu": getattr(torch.version, "xpu", None)}
    assert torch_backends() == {name for name, version in built.items() if version is not None}


@pytest.mark.parametrize("has_signs", [False, True])
def test_torch_is_asked_only_where_it_might_say_yes(has_signs: bool) -> None:
    code = (
        "import sys\n"
        "from bayplan.planner.hardware import probe\n"
        f"probe.may_have_accelerator = lambda: {has_signs}\n"
        "probe.torch_accelerators()\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{has_signs}\n"


def test_no_sign_means_that_torch_shows_nothing() -> None:
    """On whatever machine this runs."""
    import torch

    assert may_have_accelerator() or not torch.accelerator.is_available()
