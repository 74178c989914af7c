"""Networks of your own, three lines: any module(s) that give logits, any data, a radius."""

import torch

import randens

train, (x, y) = randens.data.load("digits", "train"), randens.data.load("digits", "test")[:100]
nets = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)) for _ in range(2)]
for net in nets:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for images, labels in [batch for _ in range(3) for batch in train.batches(64)]:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
print(randens.evaluate([net.eval() for net in nets], (x, y), eps=8 / 255))
