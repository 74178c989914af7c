"""A Hugging Face classifier: its answer is unwrapped, its image processor says how to normalize."""

import torch
import transformers

import randens

size = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
net = transformers.ViTForImageClassification(transformers.ViTConfig(**size, num_labels=10)).eval()
# With weights: ViTForImageClassification.from_pretrained(name), AutoImageProcessor.from_pretrained(name).
processor = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
x, y = torch.rand(16, 3, 8, 8), torch.randint(0, 10, (16,))
print(randens.evaluate(net, (x, y), "fast", eps="8/255", preprocessing=processor))
