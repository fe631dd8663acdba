"""Devices and number formats, checked against a machine that is made up for each test."""

import pytest
import torch

from attnviz.errors import DeviceError, UsageError
from attnviz.model.devices import DTYPES, resolve_device, resolve_dtype

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Pretend a number of NVIDIA GPUs, and an Apple GPU or none."""

    def pretend(gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "mps", "expected"), [(0, False, "cpu"), (0, True, "mps"), (1, False, "cuda"), (2, True, "cuda")]
)
def test_auto_takes_cuda_then_mps_then_cpu(machine, gpus, mps, expected):
    machine(gpus, mps)
    assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize(("gpus", "mps"), [(0, False), (2, True)])
def test_cpu_is_always_there(machine, gpus, mps):
    machine(gpus, mps)
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_cuda_device_that_is_there(machine, name):
    machine(gpus=2)
    assert resolve_device(name) == torch.device(name)


def test_mps_that_is_there(machine):
    machine(mps=True)
    assert resolve_device("mps") == torch.device("mps")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_on_a_machine_without_gpu_is_an_error(machine, name):
    machine(gpus=0)
    with pytest.raises(DeviceError, match=rf"the device '{name}' .*finds no CUDA GPU here; use --device cpu"):
        resolve_device(name)


@pytest.mark.parametrize(("gpus", "name", "last"), [(1, "cuda:1", 0), (2, "cuda:2", 1), (2, "cuda:99", 1)])
def test_cuda_number_beyond_the_last_gpu_is_an_error_with_the_valid_range(machine, gpus, name, last):
    machine(gpus)
    with pytest.raises(DeviceError, match=f"the device '{name}' .*this machine has cuda:0 to cuda:{last}"):
        resolve_device(name)


def test_mps_on_a_machine_without_it_is_an_error(machine):
    machine()
    with pytest.raises(DeviceError, match="'mps' was asked for, but torch finds no Apple GPU here; use --device cpu"):
        resolve_device("mps")


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda: 1", "cuda:0:1", "cpu:0", "cpu:", "mps:0",
     "mps:", "auto:0", " cpu", "xpu", ":", "meta", "cuda:00", "cuda:٠"],
)  # fmt: skip
def test_name_that_is_no_device_is_an_error_with_the_valid_names(machine, name):
    machine(gpus=2, mps=True)
    with pytest.raises(UsageError, match=r"unknown device .*expected one of auto, cpu, cuda, cuda:N, mps"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float32", torch.float32),
        ("float64", torch.float64),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
    ],
)
def test_dtype_by_name(name, expected):
    assert resolve_dtype(name, CPU) == expected
    assert resolve_dtype(name, torch.device("cuda:1")) == expected


def test_every_dtype_has_a_tolerance():
    from attnviz.attention.tolerances import TOLERANCES

    assert set(DTYPES.values()) == set(TOLERANCES)


@pytest.mark.parametrize("name", ["", "double", "half", "float", "FLOAT32", "torch.float32", "int8", "float8"])
def test_unknown_dtype_is_an_error_with_the_valid_names(name):
    with pytest.raises(UsageError, match=r"unknown dtype .*expected one of float32, float64, bfloat16, float16"):
        resolve_dtype(name, CPU)


def test_float64_on_mps_is_an_error():
    with pytest.raises(DeviceError, match="'mps' cannot compute in float64; use --device cpu or --dtype float32"):
        resolve_dtype("float64", torch.device("mps"))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_other_dtypes_on_mps_are_fine(name):
    assert resolve_dtype(name, torch.device("mps")) == DTYPES[name]


def test_exit_codes_tell_wrong_names_from_missing_devices():
    assert (UsageError.exit_code, DeviceError.exit_code) == (2, 1)
