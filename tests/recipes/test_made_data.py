"""The two data sets that are made: the same bits everywhere, and made as described."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from phalanx.data.base import PartName, Samples, Source
from phalanx.data.dataset import open_dataset
from phalanx.errors import DataError
from phalanx.spec.data import DataSpec
from phalanx.spec.modality import columns_of
from phalanx_land_cover.patches import LandCoverSource
from phalanx_land_cover.scene import CLASSES, make_scene, reflectance
from phalanx_land_cover.settings import ScenesSpec
from phalanx_redshift.settings import SpectraSpec
from phalanx_redshift.spectra import H_ALPHA_A, START_A, RedshiftSource

SPECTRA = SpectraSpec(samples=60, test=20, bins=900, bin_width=10.0, classes=80)
SCENES = ScenesSpec(per_class=6, size=96, bands=8, patch=5, visible=16, test_stride=8)


def collect(source: Source, part: PartName) -> Samples:
    chunks = list(source.chunks(part))
    return Samples(
        inputs=np.concatenate([chunk.inputs for chunk in chunks]),
        targets=np.concatenate([chunk.targets for chunk in chunks]),
        features={
            name: np.concatenate([chunk.features[name] for chunk in chunks])
            for name in chunks[0].features
        },
    )


def spectra(**settings: object) -> RedshiftSource:
    spec = SpectraSpec.model_validate(SPECTRA.model_dump() | settings)
    return RedshiftSource(spec, root=Path())


def digest(samples: Samples) -> str:
    whole = hashlib.sha256(np.ascontiguousarray(samples.inputs).tobytes())
    whole.update(samples.targets.astype("<i8").tobytes())
    return whole.hexdigest()[:16]


def test_the_bits_of_both_are_pinned() -> None:
    """These must hold on every machine; a change of the recipe changes `_VERSION` as well."""
    assert digest(collect(spectra(), "train")) == "1f340ab0b6c6cdb2"
    assert digest(collect(LandCoverSource(SCENES), "train")) == "182d21490bfb3fc4"


def test_another_seed_is_another_data_set_and_test_galaxies_are_others() -> None:
    train = collect(spectra(), "train")
    assert digest(train) != digest(collect(spectra(seed=2), "train"))
    assert spectra().fingerprint() != spectra(seed=2).fingerprint()
    shared = np.intersect1d(train.features["flux"], collect(spectra(), "test").features["flux"])
    assert set(shared.tolist()) <= {float(np.float32(10**1.2))}  # the cap of the law


def test_a_line_lies_where_its_redshift_puts_it() -> None:
    samples = collect(spectra(snr=0.0, samples=200), "train")
    z = samples.features["z"].astype(np.float64)
    expected = ((1 + z) * H_ALPHA_A - START_A) / 10.0
    found = samples.inputs.argmax(axis=1)
    # Another line is the brightest in a few galaxies.
    assert np.mean(np.abs(found + 0.5 - expected) < 1.5) > 0.9
    assert samples.targets.tolist() == np.floor((z - 1) / 0.01 + 1e-6).astype(int).tolist()


def test_noise_follows_the_signal_to_noise() -> None:
    quiet, loud = (collect(spectra(snr=snr, samples=40), "train") for snr in (40.0, 1.0))
    roughness = [np.abs(np.diff(one.inputs, axis=1)).mean() for one in (quiet, loud)]
    assert roughness[1] > 3 * roughness[0]
    assert np.sqrt(np.mean(loud.inputs.astype(np.float64) ** 2, axis=1)) == pytest.approx(
        np.ones(40), rel=1e-5
    )


def test_galaxies_without_lines_and_copies_of_few_parents() -> None:
    bare = collect(spectra(snr=0.0, without_lines=1.0), "train")
    assert np.abs(np.diff(bare.inputs, axis=1)).max() < 0.05
    family = collect(spectra(parents=4), "train")
    assert set(family.features["parent"].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert len(set(family.features["flux"].tolist())) == 4


def test_templates_replace_the_continuum(tmp_path: Path) -> None:
    wavelength = np.linspace(3000, 11000, 50)
    np.savez(tmp_path / "own.npz", wavelength=wavelength, flux=np.stack([wavelength, wavelength]))
    np.savetxt(tmp_path / "own.txt", np.stack([wavelength, wavelength, wavelength], axis=1))
    plain = collect(spectra(snr=0.0, without_lines=1.0), "train")
    both = []
    for name in ("own.npz", "own.txt"):
        source = spectra(snr=0.0, without_lines=1.0, templates=str(tmp_path / name))
        assert source.fingerprint() != spectra(snr=0.0, without_lines=1.0).fingerprint()
        both.append(collect(source, "train"))
    assert digest(both[0]) == digest(both[1]) != digest(plain)
    assert (np.diff(both[0].inputs, axis=1) > 0).all()


@pytest.mark.parametrize(
    ("wavelength", "flux", "message"),
    [
        ([3000.0, 9000.0], [1.0, 1.0], "need 3930 to 10000"),
        ([11000.0, 3000.0], [1.0, 1.0], "must rise"),
        ([3000.0, 11000.0], [0.0, 0.0], "no flux at H-alpha"),
        ([3000.0, 11000.0], [1.0, np.nan], "not finite"),
        ([3000.0, 11000.0], [1.0, 1.0, 1.0], "do not go with"),
    ],
)
def test_templates_that_do_not_serve_are_refused(
    tmp_path: Path, wavelength: list[float], flux: list[float], message: str
) -> None:
    np.savez(tmp_path / "own.npz", wavelength=wavelength, flux=flux)
    with pytest.raises(DataError, match=message):
        spectra(templates=str(tmp_path / "own.npz")).fingerprint()
    with pytest.raises(DataError, match="there is no file"):
        spectra(templates=str(tmp_path / "missing.npz")).fingerprint()


def test_a_scene_has_all_classes_and_sensors_see_what_is_there() -> None:
    scene = make_scene((1, 1), size=192, bands=8)
    assert set(np.unique(scene.labels)) == set(range(len(CLASSES)))
    tall = np.repeat(np.repeat(scene.labels == CLASSES.index("commercial"), 2, 0), 2, 1)
    flat = np.repeat(np.repeat(scene.labels == CLASSES.index("asphalt road"), 2, 0), 2, 1)
    assert scene.lidar[0][tall].mean() > scene.lidar[0][flat].mean() + 50
    wet = np.repeat(np.repeat(scene.labels == CLASSES.index("water"), 2, 0), 2, 1)
    assert scene.sar[0][wet].mean() < scene.sar[0][tall].mean() - 50
    leaves = scene.labels == CLASSES.index("grass")
    assert scene.hyperspectral[-1][leaves].mean() > 3 * scene.hyperspectral[3][leaves].mean()


def test_no_two_classes_have_one_spectrum() -> None:
    spectra_of_classes = reflectance(np.linspace(0.38, 1.05, 20))
    assert (spectra_of_classes > 0).all()
    assert (spectra_of_classes < 0.8).all()
    assert len({tuple(row.round(4)) for row in spectra_of_classes}) == len(CLASSES)


def test_samples_are_balanced_and_from_other_scenes_than_the_test() -> None:
    source = LandCoverSource(SCENES.model_copy(update={"train_scenes": 2, "size": 192}))
    train, test = collect(source, "train"), collect(source, "test")
    assert np.bincount(train.targets).tolist() == [6] * 12
    assert set(train.features["scene"].tolist()) == {1.0, 2.0}
    assert set(test.features["scene"].tolist()) == {0.0}
    assert source.test_map is not None
    assert len(test.targets) == source.test_map[0] * source.test_map[1]


def test_a_packed_row_holds_each_sensors_window_around_the_pixel() -> None:
    source = LandCoverSource(SCENES)
    test = collect(source, "test")
    columns = columns_of(source.modalities)
    scene = make_scene((1, 0), size=96, bands=8)
    middle, side = SCENES.margin, source.test_map[1] if source.test_map else 0
    row, column = middle + 8, middle + 16  # the second row of the grid, its third place
    packed = test.inputs[side + 2]
    patch = packed[columns["hyperspectral"]].reshape(8, 5, 5)
    assert np.array_equal(patch, scene.hyperspectral[:, row - 2 : row + 3, column - 2 : column + 3])
    fine = packed[columns["lidar"]].reshape(5, 10, 10)
    top, left = 2 * (row - 2), 2 * (column - 2)
    assert np.array_equal(fine, scene.lidar[:, top : top + 10, left : left + 10])
    seen = packed[columns["visible"]].reshape(3, 16, 16)
    top, left = 4 * row - 6, 4 * column - 6
    assert np.array_equal(seen, scene.visible[:, top : top + 16, left : left + 16])
    assert test.targets[side + 2] == scene.labels[row, column]


def test_opening_a_made_data_set_caches_it_with_its_features(tmp_path: Path) -> None:
    spec = DataSpec(name="phalanx_land_cover:SCENES", args=SCENES.model_dump(mode="json"))
    first = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path)
    again = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path)
    assert first.fingerprint == again.fingerprint
    assert first.input_shape == (sum(one.size for one in first.modalities),)
    assert first.class_names == CLASSES
    assert set(again.train.features) == {"scene", "region"}
    assert len(again.train.features["region"]) == len(again.train.targets)
