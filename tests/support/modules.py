"""Small networks of many kinds. Plain torch, except for the paper's own mlp, which cases.py builds."""

import torch
from torch import Tensor, nn


class Scalar(nn.Module):
    """Returns (N,), not (N, 1)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[:, 0]


class Squeezed(nn.Module):
    """Returns what squeeze() leaves: (N, C), (N,), or fewer axes when there is one point."""

    def __init__(self, out_features: int = 1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, out_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze()


class UsedTwice(nn.Module):
    """One Linear applied twice."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(torch.tanh(self.middle(h)))))


class SharedWeight(nn.Module):
    """Two Linears that share their weight and have a bias each."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right, self.last = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.right(torch.tanh(self.left(h)))))


class TiedEmbedding(nn.Module):
    """An embedding whose weight is that of a Linear, too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embedding(tokens).tanh().mean(dim=1))[:, :2]


class Attention(nn.Module):
    """Embedding, attention, pooling."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        return self.out((h + self.attention(h, h, h, need_weights=False)[0]).mean(dim=1))


class Encoder(nn.Module):
    """Embedding and a whole transformer layer, two outputs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(tokens)).mean(dim=1))


class Positions(nn.Module):
    """Linear layers applied to every position of a sequence; time_first swaps the first two axes inside."""

    def __init__(self, in_features: int, width: int, time_first: bool = False):
        super().__init__()
        self.time_first = time_first
        self.body = nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.transpose(0, 1)).mean(dim=0) if self.time_first else self.body(x).mean(dim=1)


class Direct(nn.Module):
    """A Linear whose weight is also used behind its back, and a parameter of no layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.gain = nn.Linear(2, 2), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.tanh(self.layer(x)) @ self.layer.weight


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
    )


def layer_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1)
    )


def standard(out_features: int = 1, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out_features))


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, 1))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def frozen() -> nn.Module:
    """A frozen layer, a frozen weight beside a trainable bias, a trainable weight beside a frozen bias."""
    module = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    module[0].requires_grad_(False)
    module[2].get_parameter("weight").requires_grad_(False)
    module[4].get_parameter("bias").requires_grad_(False)
    return module


def strided_cnn() -> nn.Module:
    """More patches than weights in one convolution, fewer in the other; batch norm with statistics of its own."""
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.get_buffer("running_mean").copy_(torch.tensor([0.3, -0.2, 0.1]))
        norm.get_buffer("running_var").copy_(torch.tensor([0.5, 1.5, 2.0]))
    first, second = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Conv2d(3, 12, 3, padding="same", dilation=2)
    return nn.Sequential(first, norm, nn.ReLU(inplace=True), second, nn.Tanh(), nn.Flatten(), nn.Linear(192, 2)).eval()


def circular() -> nn.Module:
    conv = nn.Conv1d(2, 3, 3, dilation=2, padding=2, padding_mode="circular")
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))


def group_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))


class PaddedEmbedding(nn.Module):
    """An embedding with a padding row, which is never trained."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(x)).sum(dim=1))


class Recurrent(nn.Module):
    """An LSTM, which torch.func cannot batch, before a Linear, whose factors are known."""

    def __init__(self):
        super().__init__()
        self.body, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)[0][:, -1])
