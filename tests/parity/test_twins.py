"""Every built-in network and its Keras twin: one computation in two frameworks."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

from phalanx.errors import EngineError, SpecError
from phalanx.model.catalogue import build_model as build_torch
from phalanx.spec.modality import Modality
from phalanx.spec.model import (
    MODELS,
    CnnSpec,
    DensenetSpec,
    MlpSpec,
    MnistCnnSpec,
    ModelSpec,
    ResnetSpec,
    UserModelSpec,
)
from support.parameter_count import count_parameters

tf = pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")

from phalanx.backends.tensorflow.model import (  # noqa: E402  # only where there is TensorFlow
    build_model as build_keras,
)
from support.keras_weights import (  # noqa: E402
    read_weights,
    torch_layout,
    variables_by_name,
    write_weights,
)

TOLERANCE = 1e-4
NUM_CLASSES = 10
SENSORS = (
    Modality("hyperspectral", (5, 7, 7)),
    Modality("lidar", (2, 9, 6)),
    Modality("sar", (1, 9, 6)),
    Modality("visible", (3, 11, 10)),
)
PACKED = (sum(one.size for one in SENSORS),)


@dataclasses.dataclass(frozen=True)
class Case:
    spec: ModelSpec
    shape: tuple[int, ...]
    modalities: tuple[Modality, ...] = ()

    def __str__(self) -> str:
        settings = self.spec.model_dump(exclude={"name"}).values()
        return "-".join(map(str, (self.spec.name, *settings, *self.shape)))


def redshift(**settings: object) -> ModelSpec:
    return UserModelSpec.model_validate({"name": "phalanx_redshift:NETWORK", "args": settings})


def land_cover(**settings: object) -> ModelSpec:
    return UserModelSpec.model_validate({"name": "phalanx_land_cover:NETWORK", "args": settings})


# Odd image sizes, because padding and pooling differ there first. Dropout is off wherever numbers
# are compared: the two frameworks draw from different generators.
CASES = [
    Case(MlpSpec(), (28, 28, 1)),
    Case(MlpSpec(hidden=(20,)), (7,)),
    Case(MlpSpec(hidden=()), (5, 4, 3)),
    Case(CnnSpec(filters=8, dense=16), (15, 13, 3)),
    Case(MnistCnnSpec(dropout=False), (17, 12, 1)),
    Case(ResnetSpec(n=1), (15, 16, 3)),
    Case(ResnetSpec(n=2), (16, 16, 1)),
    Case(ResnetSpec(n=2, version=2), (13, 16, 3)),
    Case(DensenetSpec(depth=16, growth=6, dropout=0.0), (15, 16, 1)),
    Case(DensenetSpec(depth=10, growth=5, reduction=0.37, dropout=0.0), (12, 12, 3)),
    Case(redshift(dense=32, dropout=0.0), (50,)),
    Case(redshift(convolutions=2, kernel=3, dense=9, dropout=0.0, batch_norm=False), (33,)),
    Case(land_cover(width=0.1), PACKED, SENSORS),
    Case(land_cover(width=0.2, modalities=["visible", "sar"], outputs=12), PACKED, SENSORS),
]
WITH_STATISTICS = [
    case
    for case in CASES
    if case.spec.name in ("resnet", "densenet")
    or (
        case.spec.name == "phalanx_redshift:NETWORK"
        and case.spec.user_args == {"dense": 32, "dropout": 0.0}
    )
]
FRESH = [
    Case(MlpSpec(), (28, 28, 1)),
    Case(CnnSpec(), (28, 28, 1)),
    Case(MnistCnnSpec(), (28, 28, 1)),
    Case(ResnetSpec(n=1), (32, 32, 3)),
    Case(ResnetSpec(n=1, version=2), (32, 32, 3)),
    Case(DensenetSpec(), (28, 28, 1)),
    Case(redshift(), (200,)),
    Case(land_cover(width=0.3), PACKED, SENSORS),
]


def torch_twin(case: Case, seed: int = 3) -> torch.nn.Module:
    return build_torch(
        case.spec,
        input_shape=case.shape,
        num_classes=NUM_CLASSES,
        seed=seed,
        modalities=case.modalities,
    )


def keras_twin(case: Case, seed: int = 3):  # type: ignore[no-untyped-def]
    return build_keras(
        case.spec,
        input_shape=case.shape,
        num_classes=NUM_CLASSES,
        seed=seed,
        modalities=case.modalities,
    )


def pair(case: Case):  # type: ignore[no-untyped-def]
    """A torch network whose scales, shifts and statistics are not the start values, and a copy."""
    module, twin = torch_twin(case), keras_twin(case, seed=99)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point() and value.ndim == 1:
                noise = torch.rand(value.shape, generator=generator)
                value.copy_(0.5 + noise if name.endswith("running_var") else value + 0.2 * noise)
    write_weights(twin, arrays(module))
    return module, twin


def arrays(module: torch.nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}


def batch(case: Case, size: int = 6) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    generator = np.random.default_rng(8)
    inputs = generator.standard_normal((size, *case.shape), dtype=np.float32)
    return inputs, generator.integers(0, NUM_CLASSES, size)


def as_torch(inputs: npt.NDArray[np.float32]) -> torch.Tensor:
    tensor = torch.from_numpy(inputs)
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor


def assert_near(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32], what: str) -> None:
    assert found.shape == wanted.shape, what
    scale = max(float(np.abs(wanted).max()), 1e-3)
    assert float(np.abs(found - wanted).max()) / scale < TOLERANCE, what


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_equal_weights_give_equal_logits_losses_and_gradients(case: Case, training: bool) -> None:
    module, twin = pair(case)
    inputs, targets = batch(case)

    module.train(training)
    outputs = module(as_torch(inputs))
    loss = F.cross_entropy(outputs, torch.from_numpy(targets))
    loss.backward()

    with tf.GradientTape() as tape:
        logits = twin(inputs, training=training)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        twin_loss = tf.reduce_mean(losses)
    variables = {name: v for name, v in variables_by_name(twin).items() if v.trainable}
    gradients = tape.gradient(twin_loss, [v.value for v in variables.values()])

    assert_near(logits.numpy(), outputs.detach().numpy(), "logits")
    assert float(twin_loss) == pytest.approx(loss.item(), rel=TOLERANCE)
    wanted = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    assert variables.keys() == wanted.keys()
    # A bias before a normalisation has no effect: its gradient is rounding, in both frameworks.
    scale = max(float(np.abs(gradient).max()) for gradient in wanted.values())
    for name, gradient in zip(variables, gradients, strict=True):
        difference = np.abs(torch_layout(gradient.numpy()) - wanted[name]).max()
        own_scale = max(float(np.abs(wanted[name]).max()), 1e-2 * scale)
        assert difference / own_scale < TOLERANCE, f"gradient of {name}"


@pytest.mark.parametrize("case", WITH_STATISTICS, ids=str)
def test_running_statistics_move_alike(case: Case) -> None:
    module, twin = pair(case)
    inputs, _ = batch(case)
    before = arrays(module)

    module.train()
    with torch.no_grad():
        module(as_torch(inputs))
    twin(inputs, training=True)

    found, wanted = read_weights(twin), arrays(module)
    statistics = [name for name in wanted if "running" in name]
    assert statistics
    for name in statistics:
        assert not np.array_equal(before[name], wanted[name])
        assert_near(found[name], wanted[name], name)


@pytest.mark.parametrize("case", WITH_STATISTICS, ids=str)
def test_evaluating_leaves_the_statistics(case: Case) -> None:
    _, twin = pair(case)
    before = read_weights(twin)
    twin(batch(case)[0], training=False)
    after = read_weights(twin)
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_come_back_as_they_went(case: Case) -> None:
    module, twin = pair(case)
    wanted = {n: a for n, a in arrays(module).items() if not n.endswith("num_batches_tracked")}
    found = read_weights(twin)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("case", FRESH, ids=str)
def test_fresh_weights_follow_the_same_law(case: Case) -> None:
    module, twin = torch_twin(case), keras_twin(case)
    found, wanted = read_weights(twin), arrays(module)
    counted = count_parameters(module)
    assert sum(array.size for array in found.values()) == counted.total
    assert sum(int(np.prod(v.shape)) for v in twin.trainable_variables) == counted.trainable
    for name, array in found.items():
        other = wanted[name]
        if array.ndim == 1:
            np.testing.assert_array_equal(array, other)
            continue
        # The deviation of n draws is known to about 1 / sqrt(2n); five times that for the
        # difference of two. The largest draw tells a uniform law from a normal one.
        error = 5 / np.sqrt(array.size)
        assert array.std() == pytest.approx(other.std(), rel=error), name
        assert abs(float(array.mean() - other.mean())) < error * other.std(), name
        if array.size > 2000:
            peak = float(np.abs(other).max())
            assert float(np.abs(array).max()) == pytest.approx(peak, rel=0.02), name


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    case = Case(ResnetSpec(n=1), (8, 8, 1))
    first, again, other = keras_twin(case, 1), keras_twin(case, 1), keras_twin(case, 2)
    values = [read_weights(twin) for twin in (first, again, other)]
    kernels = [name for name, array in values[0].items() if array.ndim > 1]
    for name in kernels:
        assert np.array_equal(values[0][name], values[1][name])
        assert not np.array_equal(values[0][name], values[2][name])
    # Layers of one shape start apart.
    same_shape = [values[0][f"blocks.0.conv{number}.weight"] for number in (1, 2)]
    assert not np.array_equal(*same_shape)


@pytest.mark.parametrize(
    ("spec", "rate"),
    [(MlpSpec(hidden=(2000,), dropout=0.3), 0.3), (MnistCnnSpec(), 0.25)],
    ids=["mlp", "mnist-cnn"],
)
def test_dropout_drops_its_share_in_training_only(spec: ModelSpec, rate: float) -> None:
    twin = keras_twin(Case(spec, (28, 28, 1)))
    layer = next(layer for layer in twin.layers if type(layer).__name__ == "Dropout")
    ones = np.ones((4, 10_000), dtype=np.float32)
    dropped = layer(ones, training=True).numpy()
    assert (dropped == 0).mean() == pytest.approx(rate, abs=0.02)
    assert dropped.mean() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(layer(ones, training=False), ones)


def test_densenet_drops_behind_every_convolution_of_a_dense_layer() -> None:
    twin = keras_twin(Case(DensenetSpec(depth=10, dropout=0.1), (8, 8, 1)))
    assert sum(type(layer).__name__ == "Dropout" for layer in twin.layers) == 3 * 1 * 2


def test_half_precision_keeps_variables_in_full() -> None:
    for spec in (MnistCnnSpec(dropout=False), ResnetSpec(n=1)):
        case = Case(spec, (12, 12, 1))
        full = keras_twin(case)
        half = build_keras(
            spec, input_shape=case.shape, num_classes=NUM_CLASSES, seed=3, precision="bf16"
        )
        inputs, _ = batch(case)
        logits = half(inputs, training=True)
        assert logits.dtype == tf.bfloat16
        assert {variable.dtype for variable in half.variables} == {"float32"}
        wanted = full(inputs, training=True).numpy()
        found = tf.cast(logits, tf.float32).numpy()
        assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()


def test_there_is_a_twin_of_every_built_in_network() -> None:
    assert all(MODELS.find(name).keras is not None for name in MODELS.built_in)
    assert {case.spec.name for case in CASES} >= set(MODELS.built_in)


def test_weights_of_another_network_are_refused_and_change_nothing() -> None:
    case = Case(MlpSpec(hidden=(8,)), (5,))
    twin = keras_twin(case)
    before = read_weights(twin)
    wrong = before | {"layers.0.weight": np.zeros((8, 6), np.float32)}
    with pytest.raises(EngineError, match=r"layers\.0\.weight"):
        write_weights(twin, wrong)
    assert all(np.array_equal(before[name], array) for name, array in read_weights(twin).items())


def test_a_network_that_does_not_fit_the_input_is_refused_in_the_same_words() -> None:
    case = Case(ResnetSpec(), (64,))
    with pytest.raises(SpecError) as ours:
        torch_twin(case)
    with pytest.raises(SpecError) as theirs:
        keras_twin(case)
    assert str(ours.value) == str(theirs.value)


def test_a_users_network_must_be_a_keras_model(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("twin_net.py", "w", encoding="utf-8") as file:
        file.write(
            "import keras\n"
            "def build(input_shape, num_classes, width=4):\n"
            "    return keras.Sequential([keras.Input(input_shape),"
            " keras.layers.Dense(width), keras.layers.Dense(num_classes)])\n"
            "def unbuilt(num_classes):\n"
            "    return keras.Sequential([keras.layers.Dense(num_classes)])\n"
            "def wrong():\n"
            "    return 3\n"
        )

    def build(name: str, **args: object):  # type: ignore[no-untyped-def]
        spec = UserModelSpec(name=f"twin_net:{name}", args=args)
        return build_keras(spec, input_shape=(5,), num_classes=3, seed=1)

    assert build("build", width=7).count_params() == 5 * 7 + 7 + 7 * 3 + 3
    assert build("unbuilt").count_params() == 5 * 3 + 3
    with pytest.raises(SpecError, match=r"returned int; with 'backend: tensorflow' it must"):
        build("wrong")
