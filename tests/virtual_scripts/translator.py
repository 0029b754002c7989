"""An encoder and a decoder: torch.nn.Transformer with masks and label smoothing."""

import torch
from counting import report

embed = torch.nn.Embedding(1000, 128, padding_idx=0).cuda()
model = torch.nn.Transformer(128, 4, 2, 2, 256, batch_first=True).cuda()
head = torch.nn.Linear(128, 1000, bias=False).cuda()
head.weight = embed.weight
parts = torch.nn.ModuleList([embed, model, head])
optimizer = torch.optim.Adam(parts.parameters(), betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
criterion = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
for _ in range(3):
    source = torch.randint(1, 1000, (4, 21), device="cuda")
    target = torch.randint(1, 1000, (4, 18), device="cuda")
    source[1:, 15:] = 0
    mask = torch.nn.Transformer.generate_square_subsequent_mask(17, device="cuda")
    out = model(
        embed(source), embed(target[:, :-1]), tgt_mask=mask, tgt_is_causal=True,
        src_key_padding_mask=source == 0, memory_key_padding_mask=source == 0,
    )  # fmt: skip
    loss = criterion(head(out).flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
del source, target, mask, out, loss
report(parts, optimizer)
