"""Optimisers of torch.optim and of users in job files."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.engine.flat import FlatModule
from phalanx.engine.optimizer_factory import factory_for
from phalanx.errors import SpecError
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.spec.torch_optimizer import KNOWN, TorchOptimizerSpec
from support.plugins import PLUGINS

OWN = "phalanx_extras.own_optimizers"


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGINS)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_of_torch_without_importing_it_is_true(name: str) -> None:
    rate, slots = KNOWN[name]
    cls = getattr(torch.optim, name)
    assert inspect.signature(cls).parameters["lr"].default == rate
    module = nn.Linear(4, 3, bias=False)
    flat = FlatModule(module)
    spec = job_from_mapping({"optimizer": f"torch.optim:{name}"}).optimizer
    state = factory_for(spec, module, flat.layout).build(flat.parameters).state()
    long = {key.rpartition("/")[2] for key, one in state.items() if one.numel() == 12}
    assert long == set(slots)


def test_every_optimiser_of_torch_is_known_or_refused() -> None:
    public = {name for name, one in vars(torch.optim).items() if isinstance(one, type)}
    assert public - set(KNOWN) == {"LBFGS", "SparseAdam", "Optimizer"}


def test_reading_such_a_job_does_not_import_torch() -> None:
    code = (
        "import sys; from phalanx.spec.loader import job_from_mapping; "
        "print(job_from_mapping({'optimizer': 'torch.optim:Adadelta'}).optimizer.lr); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "1.0"


def test_a_job_goes_through_its_mapping_unchanged() -> None:
    given = {
        "name": f"{OWN}:Lamb",
        "args": {"betas": [0.8, 0.9]},
        "groups": [{"match": ["*bias"], "args": {"lr": 0.5}}],
        "cuts": "tensor",
    }
    spec = job_from_mapping({"optimizer": given}).optimizer
    assert isinstance(spec, TorchOptimizerSpec)
    assert spec.lr == 0.01, "the default of the class"
    assert job_from_mapping({"optimizer": to_mapping(spec)}).optimizer == spec


def test_groups_are_made_by_the_patterns_of_their_names() -> None:
    given = {
        "name": "torch.optim:AdamW",
        "lr": 0.1,
        "groups": [
            {"match": ["*bias"], "args": {"weight_decay": 0.0}},
            {"match": ["1.*"], "args": {"lr": 0.01}},
        ],
    }
    module = network()
    spec = job_from_mapping({"optimizer": given}).optimizer
    recipe = factory_for(spec, module, FlatModule(module).layout).recipe
    assert recipe is not None
    assert [group.names for group in recipe.groups] == [
        ("0.weight", "2.weight"),
        ("0.bias", "1.bias", "2.bias"),
        ("1.weight",),
    ]
    assert [group.options["lr"] for group in recipe.groups] == [0.1, 0.1, 0.01]
    assert [group.options["weight_decay"] for group in recipe.groups] == [0.01, 0.0, 0.01]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "torch.optim:LBFGS"}, "it computes the loss several times in one step"),
        ({"optimizer": "torch.optim:SparseAdam"}, "it takes sparse gradients only"),
        ({"optimizer": "torch.optim:Adamm"}, "has no 'Adamm'; did you mean 'Adam'?"),
        (
            {"optimizer": {"name": "torch.optim:SGD", "weight_decay": 0.1}},
            "takes weight_decay in args; write 'args: {weight_decay: 0.1}'",
        ),
        (
            {"optimizer": {"name": "torch.optim:SGD", "args": {"lr": 0.1}}},
            "optimizer.args takes no lr: it comes beside args",
        ),
        ({"optimizer": {"name": "torch.optim:SGD", "momentum": 0.9}}, "unknown key 'momentum'"),
        (
            {"optimizer": "torch.optim:SGD", "strategy": "split", "workers": 2},
            "split has optimisers of the table only, not 'torch.optim:SGD'",
        ),
        (
            {"optimizer": "torch.optim:SGD", "backend": "ddp"},
            "backend ddp has optimisers of the table only",
        ),
        (
            {"optimizer": "torch.optim:SGD", "backend": "tensorflow"},
            "has no form for backend tensorflow",
        ),
    ],
)
def test_what_does_not_fit_is_refused_when_the_job_is_read(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        job_from_mapping(settings)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("torch.optim:Muon", "cannot be made: ValueError: Muon only supports 2D parameters"),
        (
            {"name": "torch.optim:SGD", "args": {"momentun": 0.9}},
            "unexpected keyword argument 'momentun'",
        ),
        (
            {"name": "torch.optim:SGD", "groups": [{"match": ["*.gamma"]}]},
            "no parameter of the network is left for ['*.gamma']",
        ),
        (
            {"name": f"{OWN}:muon_for_matrices", "groups": [{"match": ["*bias"]}]},
            "is a function, which makes its own groups",
        ),
        ({"name": "builtins:dict", "lr": 0.1}, "is type, not OptimizerKind"),
        ({"name": "own_nothing:nothing", "lr": 0.1}, "is NoneType, not a torch.optim.Optimizer"),
    ],
)
def test_what_does_not_fit_the_network_is_refused_with_what_it_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: object, message: str
) -> None:
    (tmp_path / "own_nothing.py").write_text("def nothing(network, lr):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = network()
    layout = FlatModule(module).layout

    def make() -> None:
        factory_for(job_from_mapping({"optimizer": optimizer}).optimizer, module, layout)

    with pytest.raises(SpecError) as refused:
        make()
    assert message in str(refused.value)
