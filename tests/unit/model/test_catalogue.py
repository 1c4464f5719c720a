"""Sizes, determinism and refusals of the built-in networks."""

import pytest
import torch

from phalanx.errors import SpecError
from phalanx.model.catalogue import build_model
from phalanx.spec.model import (
    MODELS,
    CnnSpec,
    DensenetSpec,
    MlpSpec,
    MnistCnnSpec,
    ModelSpec,
    ResnetSpec,
)
from phalanx.spec.registry import load
from support.parameter_count import count_parameters

MNIST = (28, 28, 1)
CIFAR = (32, 32, 3)
SMALL = [
    MlpSpec(hidden=(16,), dropout=0.2),
    CnnSpec(),
    MnistCnnSpec(),
    ResnetSpec(n=1),
    ResnetSpec(n=1, version=2),
    DensenetSpec(depth=10),
]


@pytest.mark.parametrize(
    ("spec", "shape", "trainable", "total"),
    [
        (MlpSpec(), MNIST, 266_610, 266_610),
        (MlpSpec(hidden=(128,)), MNIST, 101_770, 101_770),
        (CnnSpec(), MNIST, 347_146, 347_146),
        (MnistCnnSpec(), MNIST, 1_199_882, 1_199_882),
        (ResnetSpec(n=8), CIFAR, 760_266, 763_882),
        (ResnetSpec(n=9), CIFAR, 857_706, 861_770),
        (ResnetSpec(n=6, version=2), CIFAR, 1_663_338, 1_673_738),
        (DensenetSpec(), MNIST, 175_690, 180_778),
    ],
)
def test_exact_parameter_counts(
    spec: ModelSpec, shape: tuple[int, ...], trainable: int, total: int
) -> None:
    count = count_parameters(build_model(spec, input_shape=shape, num_classes=10, seed=1))
    assert (count.trainable, count.total) == (trainable, total)


def test_every_built_in_name_has_a_builder() -> None:
    for kind in map(MODELS.find, MODELS.names()):
        assert callable(load(kind.build))


@pytest.mark.parametrize("spec", SMALL, ids=lambda s: s.name)
@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 11, 3)])
def test_small_images_give_logits_and_gradients(
    spec: ModelSpec, shape: tuple[int, int, int]
) -> None:
    model = build_model(spec, input_shape=shape, num_classes=7, seed=1)
    height, width, channels = shape
    images = torch.randn(3, height, width, channels).permute(0, 3, 1, 2)
    logits = model(images)
    assert logits.shape == (3, 7)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("spec", SMALL, ids=lambda s: s.name)
def test_weights_depend_on_the_seed_alone(spec: ModelSpec) -> None:
    def weights(seed: int) -> torch.Tensor:
        model = build_model(spec, input_shape=(8, 8, 1), num_classes=10, seed=seed)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.manual_seed(3)
    first = weights(5)
    torch.manual_seed(4)
    assert torch.equal(first, weights(5))
    assert not torch.equal(first, weights(6))


def test_building_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_model(CnnSpec(), input_shape=(8, 8, 1), num_classes=10, seed=9)
    assert torch.equal(torch.rand(4), expected)


def test_initial_laws() -> None:
    resnet = build_model(ResnetSpec(n=2), input_shape=CIFAR, num_classes=10, seed=1)
    kernel = resnet.get_parameter("blocks.5.conv2.weight")
    deviation = (2 / (64 * 9)) ** 0.5
    assert kernel.std().item() == pytest.approx(deviation, rel=0.03)
    assert kernel.abs().max().item() <= 2 * deviation / 0.8796 + 1e-6
    assert not resnet.get_parameter("blocks.5.conv2.bias").any()
    mlp = build_model(MlpSpec(), input_shape=MNIST, num_classes=10, seed=1)
    bound = (6 / (784 + 300)) ** 0.5
    dense = mlp.get_parameter("layers.0.weight").abs().max().item()
    assert 0.99 * bound < dense <= bound


def test_flat_features_suit_the_mlp() -> None:
    model = build_model(MlpSpec(), input_shape=(13,), num_classes=3, seed=1)
    assert model(torch.zeros(2, 13)).shape == (2, 3)


@pytest.mark.parametrize("spec", SMALL[1:], ids=lambda s: s.name)
def test_images_are_refused_in_one_sentence_when_they_do_not_fit(spec: ModelSpec) -> None:
    with pytest.raises(SpecError, match=r"at least \dx\d pixels, but the data has 3x40"):
        build_model(spec, input_shape=(3, 40, 1), num_classes=10, seed=1)
    with pytest.raises(SpecError, match=r"samples of shape \(64,\); choose 'mlp'"):
        build_model(spec, input_shape=(64,), num_classes=10, seed=1)


@pytest.mark.parametrize(
    ("spec", "pixels"),
    [(CnnSpec(), 4), (MnistCnnSpec(), 6), (ResnetSpec(n=1), 4), (DensenetSpec(depth=10), 4)],
)
def test_the_smallest_accepted_image_works(spec: ModelSpec, pixels: int) -> None:
    model = build_model(spec, input_shape=(pixels, pixels, 1), num_classes=2, seed=1)
    assert model(torch.randn(2, 1, pixels, pixels)).isfinite().all()
