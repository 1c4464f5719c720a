"""Build the Keras twin of `network`."""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit
from phalanx_redshift.layout import num_bins
from phalanx_redshift.settings import RedshiftSpec


def build_redshift(
    spec: RedshiftSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Convolutions along the spectrum, then dense layers."""
    kit = LayerKit(seed, policy, convolutions="glorot-uniform", dense="glorot-uniform")
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Reshape((num_bins(input_shape), 1), dtype=policy)(inputs)
    # Margin, convolution, activation, pool and maybe a norm: so many layers torch counts each time.
    layers_each = 5 if spec.batch_norm else 4
    for number in range(spec.convolutions):
        first = number * layers_each
        convolution = kit.line_convolution(f"features.{first + 1}", spec.filters, spec.kernel)
        hidden = kit.line_pool(kit.relu(convolution(hidden)))
        if spec.batch_norm:
            hidden = kit.norm(f"features.{first + 4}")(hidden)
    hidden = kit.dropout("classifier.1", spec.dropout)(kit.flatten_by_channel(hidden))
    hidden = kit.fully_connected("classifier.2", spec.dense)(hidden)
    hidden = kit.dropout("classifier.3", spec.dropout)(hidden)
    return keras.Model(inputs, kit.fully_connected("classifier.4", num_classes)(hidden))
