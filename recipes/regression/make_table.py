"""Write concrete.csv: mixtures drawn at random, and a strength by a rule with some noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

COLUMNS = ("cement", "slag", "water", "sand", "age", "strength")


def make_rows(count: int = 900, seed: int = 1) -> npt.NDArray[np.float64]:
    """Return so many mixtures, a row each."""
    draw = np.random.default_rng(seed)
    cement, slag = draw.uniform(150, 500, count), draw.uniform(0, 200, count)
    water, sand = draw.uniform(140, 220, count), draw.uniform(600, 900, count)
    age = draw.choice([3, 7, 14, 28, 56, 90], count).astype(float)
    binder = cement + 0.6 * slag
    strength = 14 * binder / water * np.log1p(age) / np.log(29) + 0.01 * (sand - 750)
    strength += draw.normal(0, 1.0, count)
    return np.stack([cement, slag, water, sand, age, strength], axis=1)


if __name__ == "__main__":
    lines = [",".join(COLUMNS)]
    lines += [",".join(f"{value:.1f}" for value in row) for row in make_rows()]
    path = Path(__file__).with_name("concrete.csv")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
