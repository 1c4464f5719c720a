import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(48, 5), torch.randint(0, 3, (48,)))
    train_dataloader = DataLoader(dataset, batch_size=12, shuffle=True)
    eval_dataloader = DataLoader(dataset, batch_size=24)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    loss_fn = nn.CrossEntropyLoss()

    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(2):
        model.train()
        for inputs, labels in train_dataloader:
            inputs = inputs.to(accelerator.device)
            loss = loss_fn(model(inputs), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        correct = 0
        for inputs, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, labels = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == labels).sum().item()
        accelerator.print(f"epoch {epoch}: {loss.item():.6f} {correct}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")


if __name__ == "__main__":
    main()
