"""The convolutional network for spectroscopic redshifts, after the code its authors published.

Three times: convolution (16 filters, kernel 8, same length), ReLU, max-pooling (3, stride 2, same),
batch normalisation. Then dropout, a dense layer of 512 without activation, dropout, classes. On
1,780 bins and 800 classes: 2,242,192 parameters with statistics, 2,242,096 trained. 81 % of them
are in the first dense layer: that is what travels.

Two departures, neither of which changes a count: batch normalisation has torch's momentum 0.1 and
epsilon 1e-5 (the published code: 0.01 in torch's reading, 1e-3), and the regulariser of the dense
layer is not the network's business (see `optimizer.l2`).
"""

from __future__ import annotations

from torch import Tensor, nn

from phalanx.model.initial import initialise
from phalanx_redshift.layout import num_bins
from phalanx_redshift.settings import RedshiftSpec


class RedshiftNet(nn.Module):
    """Convolutions along the spectrum, then dense layers."""

    def __init__(self, *, features: nn.Sequential, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, spectra: Tensor) -> Tensor:
        """Logits of shape (batch, classes) from spectra of shape (batch, bins)."""
        logits: Tensor = self.classifier(self.features(spectra.unsqueeze(1)))
        return logits


def build_redshift(
    spec: RedshiftSpec, *, input_shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    """2,242,192 parameters with statistics on 1,780 bins and 800 classes."""
    width, channels = num_bins(input_shape), 1
    features: list[nn.Module] = []
    for _ in range(spec.convolutions):
        features += [*_convolution(channels, spec), _pooling(width)]
        if spec.batch_norm:
            features.append(nn.BatchNorm1d(spec.filters))
        width, channels = -(-width // 2), spec.filters
    model = RedshiftNet(
        features=nn.Sequential(*features),
        classifier=nn.Sequential(
            nn.Flatten(),
            nn.Dropout(spec.dropout),
            nn.Linear(channels * width, spec.dense),
            nn.Dropout(spec.dropout),
            nn.Linear(spec.dense, num_classes),
        ),
    )
    initialise(model, convolutions="glorot-uniform", dense="glorot-uniform")
    return model


def _convolution(channels: int, spec: RedshiftSpec) -> list[nn.Module]:
    """A convolution that keeps the length: an even kernel pads one more on the right."""
    missing = spec.kernel - 1
    return [
        nn.ConstantPad1d((missing // 2, missing - missing // 2), 0.0),
        nn.Conv1d(channels, spec.filters, spec.kernel),
        nn.ReLU(inplace=True),
    ]


def _pooling(width: int) -> nn.Module:
    """Windows of 3 at every second place, ceil(width / 2) of them, as `same` padding gives.

    That padding is one on the right for an even width and one on both sides for an odd one.
    """
    return nn.MaxPool1d(3, stride=2, padding=width % 2, ceil_mode=True)
