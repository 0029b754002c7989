"""An evaluation loop: no gradients, accuracy, a confusion table, best of several thresholds."""

import torch
from counting import report

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(),
                            torch.nn.Linear(128, 10)).cuda().eval()  # fmt: skip
data = torch.utils.data.TensorDataset(torch.randn(200, 784), torch.randint(0, 10, (200,)))
right, seen, losses = 0, 0, []
table = torch.zeros(10, 10, dtype=torch.long, device="cuda")
with torch.inference_mode():
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        logits = model(x)
        losses.append(torch.nn.functional.cross_entropy(logits, y))
        guess = logits.argmax(1)
        right += (guess == y).sum().item()
        seen += len(y)
        table += torch.bincount(y * 10 + guess, minlength=100)[:100].view(10, 10)
        top = logits.topk(3, dim=1).indices
        hits = (top == y[:, None]).any(1).float().mean()
    mean = torch.stack(losses).mean().item()
print(f"{mean:.3f} {right / seen:.3f}")
assert seen == 200
del x, y, logits, guess, top, hits
report(model, table, losses)
