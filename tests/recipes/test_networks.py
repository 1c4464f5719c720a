"""The two networks of the case studies: sizes, parts, and what they refuse."""

import pytest
import torch

from phalanx.errors import SpecError
from phalanx.model.catalogue import build_model
from phalanx.model.parts import PartedNetwork
from phalanx.spec.modality import Modality, columns_of
from phalanx.spec.model import UserModelSpec
from support.parameter_count import count_parameters

REFERENCE = (
    Modality("hyperspectral", (48, 11, 11)),
    Modality("lidar", (5, 22, 22)),
    Modality("sar", (2, 22, 22)),
    Modality("visible", (3, 64, 64)),
)
SMALL = (
    Modality("hyperspectral", (4, 5, 5)),
    Modality("lidar", (2, 6, 6)),
    Modality("sar", (2, 6, 6)),
    Modality("visible", (3, 8, 8)),
)


def redshift(**settings: object) -> UserModelSpec:
    return UserModelSpec.model_validate({"name": "phalanx_redshift:NETWORK", "args": settings})


def land_cover(data: tuple[Modality, ...] = SMALL, **settings: object) -> PartedNetwork:
    size = sum(one.size for one in data)
    model = build_model(
        UserModelSpec.model_validate({"name": "phalanx_land_cover:NETWORK", "args": settings}),
        input_shape=(size,),
        num_classes=12,
        seed=1,
        modalities=data,
    )
    assert isinstance(model, PartedNetwork)
    return model


def test_the_redshift_network_has_the_published_size() -> None:
    model = build_model(redshift(), input_shape=(1780,), num_classes=800, seed=1)
    count = count_parameters(model)
    assert (count.trainable, count.total) == (2_242_096, 2_242_192)
    assert model(torch.zeros(2, 1780)).shape == (2, 800)


def test_the_small_redshift_network_has_the_noted_size() -> None:
    spec = redshift(batch_norm=False, dense=128, dropout=0.2)
    model = build_model(spec, input_shape=(900,), num_classes=80, seed=1)
    assert count_parameters(model).total == 246_144


def test_pools_halve_even_and_odd_lengths_as_same_padding_does() -> None:
    model = build_model(redshift(batch_norm=False), input_shape=(1780,), num_classes=2, seed=1)
    lengths = []
    hidden = torch.zeros(1, 1, 1780)
    for layer in model.get_submodule("features").children():
        hidden = layer(hidden)
        if isinstance(layer, torch.nn.MaxPool1d):
            lengths.append(hidden.shape[-1])
    assert lengths == [890, 445, 223]


def test_the_land_cover_network_has_the_reference_size_part_by_part() -> None:
    model = land_cover(REFERENCE)
    branches = ("hyperspectral", "lidar", "visible", "trunk")
    sizes = {name: count_parameters(model.get_submodule(name)).total for name in branches}
    assert sizes == {
        "hyperspectral": 5_115_840,
        "lidar": 1_274_304,
        "visible": 2_486_080,
        "trunk": 1_846_804,
    }
    assert count_parameters(model).total == 10_723_028
    assert model(torch.zeros(2, 21_484)).shape == (2, 20)


def test_every_edge_of_the_reference_network_has_the_noted_width() -> None:
    """Placed round robin, all of them cross: 107.9 MB forward and back at a batch of 32."""
    model = land_cover(REFERENCE).eval()
    widths: list[int] = []
    for name in model.reads:
        model.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output: widths.append(output[0].numel())
        )
    model(torch.zeros(1, 21_484))
    crossing_bytes = sum(widths[:-1]) * 4 * 2 * 32
    assert crossing_bytes == pytest.approx(107.9e6, rel=1e-3)


def test_a_branch_depends_on_its_own_columns_alone() -> None:
    model = land_cover()
    packed = torch.randn(2, sum(one.size for one in SMALL), requires_grad=True)
    read = [model.inputs[name].take(packed) for name in model.reads["lidar.conv1"]]
    model.run_part("lidar.conv1", read).sum().backward()
    assert packed.grad is not None
    touched = packed.grad.abs().sum(dim=0) > 0
    columns = columns_of(SMALL)
    assert touched[columns["lidar"]].any()
    assert touched[columns["sar"]].any()
    assert not touched[columns["hyperspectral"]].any()
    assert not touched[columns["visible"]].any()


def test_fewer_modalities_leave_branches_out() -> None:
    model = land_cover(modalities=["sar", "visible"])
    assert list(model.inputs) == ["sar", "visible"]
    assert model.reads["lidar.conv1"] == ("sar",)
    assert model.reads["trunk.dense1"] == ("lidar.dense", "visible.dense")
    assert model(torch.zeros(2, sum(one.size for one in SMALL))).shape == (2, 20)


def test_the_width_scales_every_layer_but_the_last() -> None:
    thin = land_cover(width=0.25, outputs=12)
    assert thin.get_submodule("trunk.classes").weight.shape == (12, 128)
    assert thin.get_submodule("visible.conv1")[0].out_channels == 8


@pytest.mark.parametrize(
    ("modalities", "settings", "message"),
    [
        (SMALL[:2], {}, "reads hyperspectral, lidar, sar, visible"),
        (SMALL, {"outputs": 5}, "set 'model.args.outputs: 12'"),
        ((SMALL[0], SMALL[1], Modality("sar", (2, 7, 7)), SMALL[3]), {}, "one height and width"),
    ],
)
def test_what_does_not_fit_is_refused(
    modalities: tuple[Modality, ...], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        land_cover(modalities, **settings)


def test_spectra_must_be_flat() -> None:
    with pytest.raises(SpecError, match=r"spectra of shape \(bins,\)"):
        build_model(redshift(), input_shape=(8, 8, 1), num_classes=3, seed=1)
