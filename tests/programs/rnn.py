"""A recurrent language model on texts of different lengths: the mean is over tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import arguments, tokens, write_parameters
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import phalanx

args = arguments(epochs=2)
torch.manual_seed(7)
PADDING = -100


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 13)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(text))[0])


def collate(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = pad_sequence([one[:-1] for one in texts], batch_first=True)
    targets = pad_sequence([one[1:] for one in texts], batch_first=True, padding_value=PADDING)
    return inputs, targets


lengths = torch.randint(4, 20, (90,)).tolist()
texts = list(torch.split(tokens(sum(lengths)), lengths))
model = LanguageModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
session = phalanx.session()
session.setup(model, optimizer)
feed = session.data(
    DataLoader(texts, 12, shuffle=True, collate_fn=collate),
    count=lambda batch: (batch[1] != PADDING).sum(),
)
for _ in session.epochs(args.epochs):
    for inputs, targets in feed:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
if session.chief:
    write_parameters(args.out, model)
