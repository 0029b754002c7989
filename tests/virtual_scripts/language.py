"""An LSTM language model with packed sequences, tied state between batches, perplexity."""

import torch
from counting import report
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

embed = torch.nn.Embedding(500, 64).cuda()
lstm = torch.nn.LSTM(64, 128, num_layers=2, dropout=0.1, batch_first=True).cuda()
head = torch.nn.Linear(128, 500).cuda()
parts = torch.nn.ModuleList([embed, lstm, head])
optimizer = torch.optim.SGD(parts.parameters(), lr=1.0, momentum=0.9, nesterov=True)
state = None
for _ in range(3):
    tokens = torch.randint(0, 500, (8, 36), device="cuda")
    out, state = lstm(embed(tokens[:, :-1]), state)
    state = tuple(s.detach() for s in state)
    loss = torch.nn.functional.cross_entropy(head(out).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(parts.parameters(), 0.25)
    optimizer.step()
    packed = pack_padded_sequence(embed(tokens), [36, 30, 20, 9, 9, 5, 2, 1], batch_first=True)
    padded, lengths = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert padded.shape == (8, 36, 128) and lengths.tolist()[-1] == 1
print(f"perplexity {loss.exp().item():.1f}")
del tokens, out, loss, packed, padded
report(parts, optimizer, state)
