"""A timm model: preprocessing="auto" reads mean and standard deviation from its own configuration."""

import timm
import torch

import randens

torch.manual_seed(0)
net = timm.create_model("test_vit", num_classes=10).eval()  # pretrained=True for real weights
x, y = torch.rand(8, 3, 160, 160), torch.arange(8)
print(net.pretrained_cfg["mean"])
print(randens.evaluate(net, (x, y), "fast", eps=2 / 255, preprocessing="auto"))
