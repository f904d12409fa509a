"""Convolutions, most of images whose channels lie side by side (channels_last), as those of halves mostly are.

Sizes are images, height, width, channels, channels of the result, extent of the window, its step, padding; of a bottleneck images, height,
width, channels, channels between.
"""

from __future__ import annotations

IMAGES = "x = torch.randn({0}, {1}, {2}, {3}, {dtype}).permute(0, 3, 1, 2); "
FILTERS = "w = torch.randn({4}, {5}, {5}, {3}, {dtype}).permute(0, 3, 1, 2); "
LAYER = "nn.Conv2d({{{0}}}, {{{1}}}, {2}, bias=False, {{dtype}}).to(memory_format=torch.channels_last), nn.BatchNorm2d({{{1}}}, {{dtype}})"
PROGRAMS = {
    "conv": IMAGES + FILTERS + "F.conv2d(x, w, stride={6}, padding={7}).permute(0, 2, 3, 1)",
    "conv_channels_first": "x = torch.randn({0}, {3}, {1}, {2}, {dtype}); w = torch.randn({4}, {3}, {5}, {5}, {dtype}); "
                           "F.conv2d(x, w, stride={6}, padding={7})",
    "bottleneck": IMAGES + f"a, an = {LAYER.format(3, 4, 1)}; b, bn = {LAYER.format(4, 4, '3, padding=1')}; "
                  f"c, cn = {LAYER.format(4, 3, 1)}; "
                  "y = F.relu(an.eval()(a(x))); y = F.relu(bn.eval()(b(y))); F.relu(cn.eval()(c(y)) + x).permute(0, 2, 3, 1)",
}

# every convolution of ResNet-50 at a batch of 32: what comes in, then each stage's
RESNET = (
    (224, 3, 64, 7, 2, 3),
    (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0), (56, 256, 64, 1, 1, 0),
    (56, 256, 128, 1, 1, 0), (56, 128, 128, 3, 2, 1), (28, 128, 512, 1, 1, 0), (56, 256, 512, 1, 2, 0), (28, 512, 128, 1, 1, 0),
    (28, 128, 128, 3, 1, 1),
    (28, 512, 256, 1, 1, 0), (28, 256, 256, 3, 2, 1), (14, 256, 1024, 1, 1, 0), (28, 512, 1024, 1, 2, 0), (14, 1024, 256, 1, 1, 0),
    (14, 256, 256, 3, 1, 1),
    (14, 1024, 512, 1, 1, 0), (14, 512, 512, 3, 2, 1), (7, 512, 2048, 1, 1, 0), (14, 1024, 2048, 1, 2, 0), (7, 2048, 512, 1, 1, 0),
    (7, 512, 512, 3, 1, 1),
)
CONV = (
    (("conv",), ("bf16",), tuple((32, side, side, *rest) for side, *rest in RESNET)),
    (("conv_channels_first",), ("fp32", "bf16"), ((32, 56, 56, 64, 64, 3, 1, 1),)),
    (("bottleneck",), ("bf16",), ((32, 56, 56, 256, 64), (32, 14, 14, 1024, 256))),
)
SUITES = {"conv": CONV}
