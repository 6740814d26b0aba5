from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import nn

from bayplan.skeleton.creation import NoValueError
from bayplan.skeleton.empty import build_empty, empty_weights, loaded_bytes


class Tagged(nn.Parameter):
    """A parameter class of a library's own."""


def params_on_meta(module: nn.Module) -> bool:
    params = list(module.parameters())
    return bool(params) and all(param.is_meta for param in params)


def test_parameters_are_on_meta_and_keep_shape_stride_dtype() -> None:
    with empty_weights():
        linear = nn.Linear(3, 5, dtype=torch.bfloat16)
        column = nn.Module()
        column.weight = nn.Parameter(torch.ones(4, 6).t())
    assert params_on_meta(linear)
    assert linear.weight.shape == (5, 3)
    assert linear.weight.dtype is torch.bfloat16
    assert column.weight.stride() == (1, 6)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.MultiheadAttention(8, 2),
        lambda: nn.LSTM(4, 4),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(4, 4, 3)),
        lambda: nn.ParameterList([nn.Parameter(torch.ones(3)), torch.ones(2)]),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(3))}),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.TransformerEncoderLayer(8, 2),
    ],
    ids=["mha", "lstm", "conv", "list", "dict", "weight_norm", "transformer"],
)
def test_torch_modules_build(build: object) -> None:
    assert callable(build)
    with empty_weights():
        module = build()
    assert params_on_meta(module)
    expected = build().state_dict()
    assert {k: v.shape for k, v in module.state_dict().items()} == {k: v.shape for k, v in expected.items()}


def test_old_weight_norm_leaves_a_derived_attribute() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"), empty_weights():
        module = nn.utils.weight_norm(nn.Linear(4, 4))
    assert params_on_meta(module)


def test_parameter_registered_twice_stays_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Parameter(torch.ones(3))
            self.first, self.second = shared, shared

    with empty_weights():
        module = Twice()
    assert module.first is module.second


def test_weight_tied_after_registration_stays_one() -> None:
    with empty_weights():
        embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10)
        head.weight = embedding.weight
    assert head.weight is embedding.weight


def test_views_of_one_storage_share_a_meta_storage() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.zeros(10)
            self.left, self.right = nn.Parameter(flat[:5]), nn.Parameter(flat[5:])

    with empty_weights():
        module = Views()
    assert module.left.untyped_storage()._cdata == module.right.untyped_storage()._cdata
    assert module.right.storage_offset() == 5


def test_class_attributes_and_requires_grad_are_kept() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = Tagged(torch.ones(3), requires_grad=False)
            weight.before = "before"
            self.weight = weight
            weight.after = "after"  # on the original, which is no longer in the module

    with empty_weights():
        module = Module()
    assert type(module.weight) is Tagged
    assert not module.weight.requires_grad
    assert (module.weight.before, module.weight.after) == ("before", "after")


def test_integer_parameter() -> None:
    with empty_weights():
        module = nn.ParameterList([nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)])
    assert module[0].is_meta
    assert module[0].dtype is torch.int8


def test_parameter_put_into_the_dict_by_hand() -> None:
    class Sneaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("known", None)
            self._parameters["sneaky"] = nn.Parameter(torch.ones(3))

    with empty_weights():
        module = Sneaky()
    assert params_on_meta(module)


def test_buffers_have_their_values() -> None:
    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table = torch.zeros(4, 4)
            angles = torch.arange(4).unsqueeze(1) * 10000 ** -(torch.arange(0, 4, 2) / 4)
            table[:, 0::2] = torch.sin(angles)
            table[:, 1::2] = torch.cos(angles)
            self.register_buffer("table", table, persistent=False)
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
            self.register_buffer("none", None)
            self.norm = nn.BatchNorm1d(4)

    expected = dict(Buffers().named_buffers())
    with empty_weights():
        module = Buffers()
    buffers = dict(module.named_buffers())
    assert list(buffers) == list(expected)
    assert all(torch.equal(buffers[name], expected[name]) for name in expected)
    assert module.none is None
    assert list(module.state_dict()) == [name for name in Buffers().state_dict()]


def test_mask_like_a_weight_has_its_values() -> None:
    class Masked(nn.Conv1d):
        def __init__(self) -> None:
            super().__init__(2, 2, 3)
            self.register_buffer("mask", torch.ones_like(self.weight))
            self.mask[:, :, 2:] = 0

    with empty_weights():
        module = Masked()
    assert torch.equal(module.mask, torch.tensor([1.0, 1.0, 0.0]).expand(2, 2, 3))


def test_device_arguments_and_moves_are_not_followed() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, device="cuda").to("cuda:1", torch.float16)
            self.register_buffer("table", torch.tensor([1.0, 2.0], device="cuda").cuda().to("cuda").cpu())
            self.register_buffer("ones", torch.ones(2, device="cuda").to(self.table))
            self.register_buffer("narrow", torch.ones(2).to(torch.float16))
            self.register_buffer("like", torch.zeros_like(self.linear.weight, device="cuda"))

    with empty_weights():
        module = Placed()
    assert params_on_meta(module)
    assert module.linear.weight.dtype is torch.float16
    assert {str(buffer.device) for buffer in module.buffers()} == {"cpu"}
    assert module.table.tolist() == [1.0, 2.0]
    assert module.narrow.dtype is torch.float16


def test_large_tensors_start_on_meta() -> None:
    with empty_weights(max_real_elements=8):
        created = [
            torch.empty(9),
            torch.zeros(3, 3),
            torch.full((9,), 1.0),
            torch.ones(size=(3, 3)),
            torch.randn(9, generator=torch.Generator()),
            torch.normal(0.0, 1.0, (9,)),
            torch.zeros(2).new_ones(9),
        ]
        assert all(tensor.is_meta for tensor in created)
        assert not torch.zeros(8).is_meta
        assert not torch.arange(9).is_meta


def test_large_buffer_is_an_error() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(3, 3))
            self.plain = torch.ones(9)

    with pytest.raises(NoValueError) as caught, empty_weights(max_real_elements=8):
        keep = Large()
    assert keep.plain.is_meta
    assert str(caught.value) == (
        "2 buffers left without values by an empty build: got Large.mask with 9 elements, Large.plain with 9"
        " elements, needed buffers with values\nhint: give them room: empty_weights(max_real_elements=9)"
    )
    with empty_weights(max_real_elements=9):
        assert Large().mask.sum() == 9


def test_build_empty_gives_large_buffers_room() -> None:
    calls = []

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            calls.append(1)
            self.register_buffer("mask", torch.ones(3, 3))
            self.weight = nn.Parameter(torch.ones(4, 4))

    module = build_empty(Large, max_real_elements=8)
    assert module.mask.sum() == 9
    assert params_on_meta(module)
    assert len(calls) == 2


def test_build_empty_buffer_on_meta_by_itself() -> None:
    class OnMeta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(3, device="meta"))

    with pytest.raises(NoValueError) as caught:
        build_empty(lambda: nn.Sequential(OnMeta()))
    assert str(caught.value) == (
        "1 buffer left without values by an empty build: got 0.mask with 3 elements, needed buffers with"
        " values\nhint: the module itself puts them on meta; let it use the default device"
    )


def _frequencies() -> nn.Module:
    module = nn.Module()
    module.register_buffer("inv_freq", torch.arange(0, 2**31, 2, dtype=torch.int64).float())
    return module


def _mask() -> nn.Module:
    module = nn.Module()
    module.register_buffer("mask", torch.zeros(2**15, 2**14, dtype=torch.bool))
    return module


@pytest.mark.parametrize(
    ("build", "got"),
    [(_frequencies, "arange of 1073741824 elements"), (_mask, "mask of 536870912 elements")],
)
def test_build_empty_does_not_follow_numbers_that_take_all_memory(
    build: Callable[[], nn.Module], got: str
) -> None:
    with pytest.raises(NoValueError) as caught:
        build_empty(build)
    assert str(caught.value) == (
        f"the model asks for a buffer larger than any model has: got {got}, needed at most 268435456\n"
        "hint: a number in its config is far too large"
    )


def test_buffer_computed_from_a_weight() -> None:
    with pytest.raises(NoValueError) as caught, empty_weights():
        torch.ones(3).add_(nn.Linear(3, 3).bias)
    assert str(caught.value) == (
        "add_ puts the values of a weight into a buffer, but the model is built without weights\n"
        "hint: compute it in forward, or load the whole model without bayplan"
    )


def test_random_state_is_as_before() -> None:
    before = torch.get_rng_state()
    with empty_weights():
        nn.init.normal_(torch.empty(100))
        nn.ParameterList([nn.Parameter(torch.randn(50))])
    assert torch.equal(torch.get_rng_state(), before)


def test_contexts_nest_and_each_has_its_own_limit() -> None:
    with empty_weights(max_real_elements=8):
        with empty_weights(max_real_elements=100):
            shared = nn.Parameter(torch.ones(3))
            inner = nn.ParameterList([shared])
            assert not torch.ones(9).is_meta
        outer = nn.ParameterList([shared])
        assert torch.ones(9).is_meta
    assert inner[0] is outer[0]
    assert not nn.Linear(2, 2).weight.is_meta


def fail_while_exchanged(methods: tuple[object, object]) -> None:
    assert nn.Module.register_parameter is not methods[0]
    raise ZeroDivisionError


def test_nothing_is_left_behind_after_an_exception() -> None:
    methods = (nn.Module.register_parameter, nn.Module.register_buffer)
    with pytest.raises(ZeroDivisionError), empty_weights():
        fail_while_exchanged(methods)
    assert (nn.Module.register_parameter, nn.Module.register_buffer) == methods
    assert not nn.Linear(2, 2).weight.is_meta
    assert not torch.nn.modules.module._global_parameter_registration_hooks


def test_real_parameters_are_freed_at_once() -> None:
    seen = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.ones(3))
            seen.append(weakref.ref(weight))
            self.weight = weight

    with empty_weights():
        module = Watched()
        assert seen[0]() is None
    assert params_on_meta(module)


def test_another_thread_builds_normally_meanwhile() -> None:
    inside, built = threading.Event(), threading.Event()
    others: list[nn.Module] = []

    def build_normally() -> None:
        inside.wait(10)
        others.append(nn.BatchNorm1d(3))
        built.set()

    thread = threading.Thread(target=build_normally)
    thread.start()
    with empty_weights():
        inside.set()
        built.wait(10)
        assert nn.Linear(2, 2).weight.is_meta
    thread.join(10)
    assert torch.equal(others[0].weight, torch.ones(3))


def test_many_threads_at_once() -> None:
    faults: list[BaseException] = []

    def work(is_empty: bool) -> None:
        try:
            for _ in range(100):
                if is_empty:
                    with empty_weights():
                        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
                else:
                    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
                assert all(param.is_meta == is_empty for param in module.parameters())
                assert not any(buffer.is_meta for buffer in module.buffers())
        except (AssertionError, RuntimeError) as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert not nn.Linear(2, 2).weight.is_meta


class OnDeviceOfWeight(nn.Module):
    """As newer models of timm do it: tables where the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        mask = torch.zeros(3, device=self.weight.device)
        mask[1:] = 1
        self.register_buffer("mask", mask)


def test_tables_on_the_device_of_a_weight() -> None:
    with pytest.raises(NoValueError):
        build_empty(OnDeviceOfWeight)
    module = build_empty(OnDeviceOfWeight, follows_meta=False)
    assert module.weight.is_meta
    assert module.mask.tolist() == [0.0, 1.0, 1.0]


def test_a_constructor_that_tries_its_layers_out() -> None:
    """The shape is right, the values are nobody's: torch alone would give them as real ones."""

    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 2)
            made = self.conv(torch.zeros(1, 3, 4, 4))
            assert made.is_meta
            self.head = nn.Linear(made.shape[1], 2)

    module = build_empty(Trying)
    assert module.head.weight.shape == (2, 5)


def test_values_from_elsewhere_are_counted() -> None:
    array = numpy.ones((4, 4), dtype="float32")

    def build() -> nn.Module:
        module = nn.Linear(4, 4)
        assert loaded_bytes() == 0
        module.weight.data.copy_(torch.from_numpy(array))
        assert loaded_bytes() == 64
        module.bias = nn.Parameter(torch.from_numpy(array[0]))
        assert loaded_bytes() == 80
        return module

    assert all(param.is_meta for param in build_empty(build).parameters())
    assert loaded_bytes() == 0
