"""A small Llama under Hugging Face's Trainer: accumulation over an uneven epoch, padded labels."""

from __future__ import annotations

import torch
from common import arguments, fail_once, tokens, write_parameters
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from phalanx.integrations.huggingface import PhalanxTrainer

BLOCK = 12
args = arguments(epochs=2)
set_seed(3)


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Texts of different lengths: what lies behind their end is not learnt."""

    def __init__(self, count: int) -> None:
        self.text = tokens(count * BLOCK).view(count, BLOCK)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = self.text[index]
        labels = text.clone()
        labels[4 + index % 8 :] = -100
        return {"input_ids": text, "labels": labels}


class Fault(TrainerCallback):
    def on_step_end(self, args: object, state: object, control: object, **others: object) -> None:
        fail_once(trainer.session.rank, state.global_step)  # type: ignore[attr-defined]


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=BLOCK,
    )
)
trainer = PhalanxTrainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(args.out.parent / "hf") if args.out else "hf",
        per_device_train_batch_size=10,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=args.epochs,
        learning_rate=3e-3,
        warmup_steps=2,
        max_grad_norm=0.5,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=Blocks(72),
    eval_dataset=Blocks(20),
    callbacks=[Fault()],
)
trainer.train()
if trainer.is_world_process_zero():
    write_parameters(args.out, model)
