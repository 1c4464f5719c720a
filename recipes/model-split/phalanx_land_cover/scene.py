"""A made-up stretch of land, and what four sensors see of it. Pure: a function of its key.

A map of twelve classes with objects (buildings, crowns, fields), rendered on one grid by a
hyperspectral sensor, on a grid twice as fine by LiDAR and radar, and on one four times as fine by a
camera. No sensor is enough alone: grass, trees and crop look alike in spectrum and differ in
height; turf, stressed grass, road and concrete are equally flat and differ in spectrum. Values
leave as bytes, which are finer than the noise that is put on. Bit-identical on every machine: see
`portable_random`. `patches` cuts samples out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.data.portable_random import Draws, Floats, exp, log

Labels = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CLASSES = (
    "water",
    "bare soil",
    "grass",
    "stressed grass",
    "synthetic turf",
    "deciduous",
    "evergreen",
    "crop",
    "asphalt road",
    "concrete lot",
    "residential",
    "commercial",
)
(WATER, SOIL, GRASS, STRESSED, TURF, DECIDUOUS, EVERGREEN, CROP, ROAD, LOT, HOUSE, HALL) = range(12)
FINE_HEIGHT, FINE_VISIBLE = 2, 4
RGB_UM = (0.66, 0.55, 0.48)

_NATURAL = 8
_ROAD_EVERY, _ROAD_WIDTH = 18, 3
_PIXELS_PER_TRY = 110
_VEGETATION = {  # near-infrared level, red, green peak
    GRASS: (0.45, 0.04, 0.06),
    STRESSED: (0.33, 0.09, 0.03),
    DECIDUOUS: (0.42, 0.035, 0.05),
    EVERGREEN: (0.34, 0.03, 0.035),
    CROP: (0.48, 0.05, 0.07),
}
# Mean, deviation between objects and roughness of the height in metres.
_HEIGHTS = np.array(
    (
        *((0, 0, 0.02), (0, 0, 0.05), (0.1, 0.05, 0.05), (0.1, 0.05, 0.05), (0, 0, 0.02)),
        *((9, 3, 1.5), (11, 3, 1.2), (0.6, 0.2, 0.15), (0, 0, 0.02), (0, 0, 0.03)),
        *((6, 1, 0.5), (14, 5, 0.2)),
    )
)
# Radar return of both polarisations in decibels.
_RADAR = np.array(
    (
        *((-20.0, -28.0), (-13, -21), (-12, -19), (-12.5, -20), (-15, -24), (-9, -14)),
        *((-8.5, -14), (-11, -17), (-17, -25), (-14, -23), (-4, -12), (-1, -10)),
    )
)
_LOOKS = 4  # of which a radar pixel is the mean
# What the lowest and the highest byte stand for.
_REFLECTANCE, _HEIGHT, _SLOPE, _DECIBELS = (0.0, 0.8), (-2.0, 30.0), (-8.0, 8.0), (-42.0, 8.0)


@dataclass(frozen=True)
class Scene:
    """One stretch of land; images are (channels, height, width)."""

    labels: Labels
    hyperspectral: Bytes
    lidar: Bytes
    """Height of the first and of the last return, slope down and across, intensity."""
    sar: Bytes
    visible: Bytes


@dataclass(frozen=True)
class _Land:
    """The map, and for every pixel which building stands there (0: none)."""

    labels: Labels
    buildings: Labels
    ridges: Labels
    """Side of the roof's ridge, -1 or 1; 0 outside buildings."""


def make_scene(key: tuple[int, ...], *, size: int, bands: int, noise: float = 1.0) -> Scene:
    """A scene of size x size pixels.

    Args:
        key: Decides everything.
        size: Pixels along each side.
        bands: Of the hyperspectral sensor.
        noise: Factor for the noise of all sensors.
    """
    land = _make_land(Draws(*key, 0), size)
    light = 1 + 0.12 * _smooth_field(Draws(*key, 1), size, 12)
    gains = 1 + 0.12 * Draws(*key, 2).normal(int(land.buildings.max()) + 1)
    gains[0] = 1.0
    bright = light * gains[land.buildings]
    return Scene(
        labels=land.labels,
        hyperspectral=_hyperspectral(Draws(*key, 4), land, bright, bands, noise),
        lidar=_lidar(Draws(*key, 3), land, noise),
        sar=_sar(Draws(*key, 5), land.labels, noise),
        visible=_visible(Draws(*key, 6), land, bright, noise),
    )


def reflectance(wavelengths_um: Floats) -> Floats:
    """Of every class at every wavelength."""
    x = wavelengths_um
    spectra = np.empty((len(CLASSES), len(x)))
    for label, (level, red, green) in _VEGETATION.items():
        spectra[label] = red + green * _peak(x, 0.55, 0.04) + level * _rise(x, 0.715, 0.015)
        spectra[label] -= 0.05 * level / 0.45 * _peak(x, 0.97, 0.03)
    along = (x - 0.38) / 0.67
    asphalt = 0.07 + 0.06 * along
    concrete = 0.22 + 0.12 * (1 - exp(-(x - 0.38) / 0.15))
    tile = 0.08 + 0.30 * _rise(x, 0.60, 0.03)
    spectra[WATER] = 0.06 * exp(-(x - 0.38) / 0.15) + 0.005
    spectra[SOIL] = 0.08 + 0.27 * exp(0.8 * log(np.maximum(along, 1e-9)))
    spectra[TURF] = 0.05 + 0.10 * _peak(x, 0.55, 0.05) + 0.12 * _rise(x, 0.85, 0.05)
    spectra[ROAD] = asphalt
    spectra[LOT] = concrete
    spectra[HOUSE] = 0.55 * tile + 0.45 * asphalt
    spectra[HALL] = 0.5 * concrete + 0.5 * asphalt
    return spectra


def _make_land(draws: Draws, size: int) -> _Land:
    fields = np.stack([_smooth(draws.normal(size, size), 6) for _ in range(_NATURAL)])
    labels = fields.argmax(axis=0)
    urban = _smooth(draws.normal(size, size), size / 10) > 0
    labels[urban & (labels == SOIL)] = LOT
    places = np.arange(size) % _ROAD_EVERY < _ROAD_WIDTH
    roads = urban & (places[:, None] | places[None, :])
    labels[roads] = ROAD
    buildings = np.zeros((size, size), dtype=np.int64)
    ridges = np.zeros((size, size), dtype=np.int64)
    tries = size * size // _PIXELS_PER_TRY
    rows, columns = draws.whole(size, tries), draws.whole(size, tries)
    is_hall = draws.uniform(tries) < 0.4
    spans = draws.uniform(2, tries)
    for number in range(tries):
        low, choices = (7, 5) if is_hall[number] else (3, 3)
        height, width = (low + int(span * choices) for span in spans[:, number])
        spot = np.s_[
            rows[number] : rows[number] + height, columns[number] : columns[number] + width
        ]
        if not urban[spot].all() or roads[spot].any() or buildings[spot].any():
            continue
        labels[spot] = HALL if is_hall[number] else HOUSE
        buildings[spot] = number + 1
        ridges[spot] = np.where(np.arange(labels[spot].shape[0]) * 2 < height, 1, -1)[:, None]
    return _Land(labels=labels, buildings=buildings, ridges=ridges)


def _hyperspectral(draws: Draws, land: _Land, bright: Floats, bands: int, noise: float) -> Bytes:
    size = len(land.labels)
    wavelengths = 0.38 + 0.67 * np.arange(bands) / (bands - 1)
    spectra = reflectance(wavelengths)
    tilt = 0.05 * _smooth_field(draws, size, 6)
    image = np.empty((bands, size, size), dtype=np.uint8)
    for band in range(bands):
        slope = 2 * band / (bands - 1) - 1
        seen = spectra[land.labels, band] * bright * (1 + slope * tilt)
        seen = _smooth(seen, 0.7, unit=False)
        image[band] = _as_bytes(seen + 0.012 * noise * draws.normal(size, size), _REFLECTANCE)
    return image


def _lidar(draws: Draws, land: _Land, noise: float) -> Bytes:
    labels = _finer(land.labels, FINE_HEIGHT)
    size = len(labels)
    mean, between, rough = (_HEIGHTS[labels, column] for column in range(3))
    natural = _smooth_field(draws, size, 4)
    per_building = draws.normal(int(land.buildings.max()) + 1)
    buildings = _finer(land.buildings, FINE_HEIGHT)
    objects = np.where(buildings > 0, per_building[buildings], natural)
    heights = np.maximum(mean + between * objects + rough * draws.normal(size, size), 0.0)
    first = heights + 0.15 * noise * draws.normal(size, size)
    # Light passes between leaves: of trees the last return comes from far below the top.
    is_tree = (labels == DECIDUOUS) | (labels == EVERGREEN)
    last = heights * np.where(is_tree, 0.5 * draws.uniform(size, size), 1.0)
    last += 0.15 * noise * draws.normal(size, size)
    down = (np.roll(first, -1, axis=0) - np.roll(first, 1, axis=0)) * 0.5
    across = (np.roll(first, -1, axis=1) - np.roll(first, 1, axis=1)) * 0.5
    infrared = reflectance(np.array([1.05]))[labels, 0]
    # How much comes back depends on the angle and the range of each flight line as well.
    gain = 1 + 0.25 * _smooth_field(draws, size, 20)
    intensity = infrared * gain * (1 + 0.1 * noise * draws.normal(size, size))
    channels = [
        _as_bytes(first, _HEIGHT),
        _as_bytes(last, _HEIGHT),
        _as_bytes(down, _SLOPE),
        _as_bytes(across, _SLOPE),
        _as_bytes(intensity, _REFLECTANCE),
    ]
    return np.stack(channels)


def _sar(draws: Draws, coarse: Labels, noise: float) -> Bytes:
    labels = _finer(coarse, FINE_HEIGHT)
    size = len(labels)
    channels = []
    for polarisation in range(2):
        decibels = _RADAR[labels, polarisation] + _smooth_field(draws, size, 2)
        if noise > 0:
            # The mean of so many exponential variables, each the logarithm of a uniform one.
            product = np.ones((size, size))
            for _ in range(_LOOKS):
                product *= draws.uniform(size, size)
            speckle = log(-log(product) / _LOOKS) * (10 / 2.302585092994046)
            decibels = decibels + noise * speckle
        channels.append(_as_bytes(decibels, _DECIBELS))
    return np.stack(channels)


def _visible(draws: Draws, land: _Land, bright: Floats, noise: float) -> Bytes:
    labels = _finer(land.labels, FINE_VISIBLE)
    size = len(labels)
    colours = reflectance(np.array(RGB_UM))
    crowns = 0.25 * _smooth_field(draws, size, 1.5)
    is_tree = (labels == DECIDUOUS) | (labels == EVERGREEN)
    texture = np.where(is_tree, crowns, 0.05 * _smooth_field(draws, size, 1))
    texture = texture + 0.12 * _finer(land.ridges, FINE_VISIBLE)
    marks = (labels == ROAD) & ((np.arange(size) % 8 < 5)[:, None])
    centre = np.arange(size) % (_ROAD_EVERY * FINE_VISIBLE) == _ROAD_WIDTH * FINE_VISIBLE // 2
    seen_light = _finer(bright, FINE_VISIBLE) * (1 + texture)
    channels = []
    for colour in range(3):
        seen = colours[labels, colour] * seen_light
        seen = np.where(marks & centre[None, :], 0.5, seen)
        seen = seen + 0.02 * noise * draws.normal(size, size)
        channels.append(_as_bytes(seen, _REFLECTANCE))
    return np.stack(channels)


def _smooth_field(draws: Draws, size: int, sigma: float) -> Floats:
    """Smooth noise of mean 0 and deviation 1."""
    return _smooth(draws.normal(size, size), sigma)


def _smooth(field: Floats, sigma: float, *, unit: bool = True) -> Floats:
    """Blur with a Gaussian, joined at opposite borders.

    Args:
        field: What is blurred.
        sigma: Of the Gaussian, in pixels.
        unit: Keep the deviation of white noise, not the mean.
    """
    reach = min(ceil(3 * sigma), len(field) // 2 - 1)
    places = np.arange(-reach, reach + 1)
    weights = exp(-0.5 * (places / sigma) * (places / sigma))
    weights /= np.sqrt(np.cumsum(weights * weights)[-1]) if unit else np.cumsum(weights)[-1]
    for axis in (0, 1):
        total = np.zeros_like(field)
        for place, weight in zip(places, weights, strict=True):
            total += weight * np.roll(field, int(place), axis=axis)
        field = total
    return field


def _finer(values: Array, factor: int) -> Array:
    repeated: Array = np.repeat(np.repeat(values, factor, axis=0), factor, axis=1)
    return repeated


def _peak(x: Floats, centre: float, width: float) -> Floats:
    place = (x - centre) / width
    return exp(-place * place)


def _rise(x: Floats, centre: float, width: float) -> Floats:
    return 1 / (1 + exp(-(x - centre) / width))


def _as_bytes(values: Floats, ends: tuple[float, float]) -> Bytes:
    low, high = ends
    result: Bytes = np.rint(np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    return result
