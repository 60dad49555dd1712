"""The Born Transformer, its softmax and polynomial siblings, their ablations and the coherent layer (paper Figure 2, Tables 3, 4 and 8).

Every model maps *fields*, one vector of 64 reals per slot, to three *scores*. Letters in shape
comments: B pairs, L slots, H heads, C = 64 reals of a slot, M = 32 complex modes (C = 2M, real
parts first, then imaginary parts).

Padding is a field of zeros. In the Born Transformer and in Poly-sim-born a zero field overlaps with
nothing, stays zero through every layer and so needs no mask.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .corpus import LABELS, MAX_TOKENS, PAD_ID

MODES, CHANNELS, HEADS, BLOCKS = 32, 170, 2, 2  # paper Table 8
PIXELS = 64  # camera pixels per class region; chosen so that 98,645 parameters lie outside the embedding
WIDTH, GELU_WIDTH = 64, 256  # paper Table 8
NAMES = ("born", "softmax", "poly", "poly-gelu", "poly-softmax", "poly-softmax-gelu")
COHERENT = ("coherent", "coherent-readout", "coherent-brickwall")  # paper Table 4, in its order
QUBITS, LAYERS = 7, 18  # two qubits of heads, five of modes; 18 layers a brickwall make the paper's 852 CNOTs
COHERENT_HEADS = 4  # paper Table 8
OUTCOMES = 2**QUBITS
REGIONS = (43, 43, 42)  # outcomes of a class, in order: 128 is no multiple of 3


@dataclass
class Trace:
    """What a forward pass measured: per block `attention` (B, H, L, L) and `row_sums` (B, H, L), and the camera `total` (B,).

    For the Born Transformer slot 0 is the reference. Passed back as `held`, the denominators stay at these values.
    """

    attention: list[Tensor] = field(default_factory=list)
    row_sums: list[Tensor] = field(default_factory=list)
    total: Tensor | None = None


def normalise_rows(amounts: Tensor, held: Tensor | None) -> tuple[Tensor, Tensor]:
    """`amounts` (..., L, L) squared over their row sums, or over `held` ones, and the sums. A row of zeros stays zero.

    A row is divided by its largest entry first: |<q|k>|^4 leaves float32's range where |<q|k>| leaves 1e-9 to 4e9.
    """
    if held is not None:
        return amounts.square() / held.masked_fill(held == 0, 1.0).unsqueeze(-1), held
    largest = amounts.detach().abs().amax(-1, keepdim=True)
    shares = (amounts / largest.masked_fill(largest == 0, 1.0)).square()
    sums = shares.sum(-1, keepdim=True)  # at least 1, or 0
    return shares / sums.masked_fill(sums == 0, 1.0), (sums * largest.square()).squeeze(-1)


# ------------------------------------------------------------------------------------- complex linear maps
class ComplexLinear(nn.Module):
    """A complex matrix (outputs, inputs) without bias, stored as real and imaginary part (2, outputs, inputs)."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator):
        super().__init__()
        scale = (2 * inputs) ** -0.5  # unit expected norm of each row
        self.weight = nn.Parameter(torch.randn(2, outputs, inputs, generator=generator) * scale)

    @property
    def matrix(self) -> Tensor:
        """The complex matrix (outputs, inputs)."""
        return torch.complex(self.weight[0], self.weight[1])

    def real_rows(self) -> Tensor:
        """(outputs, C): gives Re(W h) from a field h stored as reals."""
        return torch.cat([self.weight[0], -self.weight[1]], 1)

    def imag_rows(self) -> Tensor:
        """(outputs, C): gives Im(W h)."""
        return torch.cat([self.weight[1], self.weight[0]], 1)


def measured_product(h: Tensor, first: ComplexLinear, second: ComplexLinear) -> Tensor:
    """Re[(W1 h)(W2 h)] by homodyne detection: (B, L, C) to (B, L, outputs)."""
    rows = torch.stack([first.real_rows(), first.imag_rows(), second.real_rows(), second.imag_rows()])
    flat = h.reshape(-1, h.shape[-1])
    a, b, c, d = torch.bmm(flat.expand(4, *flat.shape), rows.transpose(1, 2))  # contiguous parts: 2x faster than chunks
    return (a * c - b * d).view(*h.shape[:-1], -1)


# ------------------------------------------------------------------------------------- complex fields
def word_fields(model: nn.Module, ids: Tensor, sentence: Tensor) -> Tensor:
    """e^{i phi_i} (E[w_i] + f_i + s) per slot (B, L, C), zero at padding, from a model's embedding, position, phase and sentence."""
    L = ids.shape[1]
    x = F.embedding(ids, model.embedding) + model.position[:L] + F.embedding(sentence, model.sentence)
    re, im = x.chunk(2, -1)
    cos, sin = model.phase[:L].cos().unsqueeze(-1), model.phase[:L].sin().unsqueeze(-1)
    x = torch.cat([cos * re - sin * im, sin * re + cos * im], -1)
    return x * (ids != PAD_ID).unsqueeze(-1)


def with_reference(model: nn.Module, x: Tensor) -> Tensor:
    """The reference gamma * r before the word fields: (B, L, C) to (B, 1 + L, C)."""
    return torch.cat([(model.reference_gain * model.reference).expand(x.shape[0], 1, -1), x], 1)


def log_shares(intensities: Tensor) -> Tensor:
    """Log-probabilities (B, 3) from N_c, defined also where no light arrives."""
    n = intensities.clamp_min(1e-30)
    return n.log() - n.sum(-1, keepdim=True).log()


# ------------------------------------------------------------------------------------- Born Transformer
class BornBlock(nn.Module):
    """Born attention |<q|k>|^4 over its row sum, then the measured product Re[(W1 h)(W2 h)]; both additive."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.query, self.key, self.value, self.output = (ComplexLinear(MODES, MODES, generator) for _ in range(4))
        self.first, self.second = (ComplexLinear(MODES, CHANNELS, generator) for _ in range(2))
        self.gain = nn.Parameter(torch.ones(CHANNELS))
        self.third = ComplexLinear(CHANNELS, MODES, generator)

    def overlaps(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Re and Im of <q_i|k_j> stacked (B, H, 2, L, L), and the value beams (B, H, L, 32)."""
        B, L, C = h.shape
        rows = []
        for linear in (self.query, self.key, self.value):  # rows ordered head, (Re, Im), mode
            rows.append(torch.stack([linear.real_rows(), linear.imag_rows()]).view(2, HEADS, -1, C).transpose(0, 1))
        qkv = F.linear(h, torch.stack(rows).reshape(3 * C, C)).view(B, L, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, L, 32), Re then Im
        re, im = k.chunk(2, -1)
        both = torch.cat([k, torch.cat([im, -re], -1)], 2)  # (B, H, 2L, 32): for Re<q|k> and for Im<q|k>
        return (q @ both.transpose(-1, -2)).view(B, HEADS, L, 2, L).transpose(2, 3), v

    def forward(self, h: Tensor, held: Tensor | None, trace: Trace | None) -> Tensor:
        B, L, C = h.shape
        overlap, v = self.overlaps(h)
        attention, sums = normalise_rows(overlap.square().sum(2), held)  # |<q|k>|^2 squared, (B, H, L, L)
        if trace is not None:
            trace.attention.append(attention)
            trace.row_sums.append(sums)
        heads = (attention @ v).view(B, HEADS, L, 2, -1).permute(0, 2, 3, 1, 4).reshape(B, L, C)
        h = h + F.linear(heads, torch.cat([self.output.real_rows(), self.output.imag_rows()]))
        channels = measured_product(h, self.first, self.second)  # (B, L, 170)
        third = self.third.weight * self.gain  # (2, M, 170)
        return h + F.linear(channels, third.view(C, CHANNELS))


class BornTransformer(nn.Module):
    """Every step a Born measurement; scores are the class probabilities (paper Table 8, first column).

    A word's field is e^{i phi_i} (E[w_i] + f_i + s), with a field and a phase per position and a
    field per sentence; slot 0 holds the reference gamma * r. `degree` is the degree of each N_c in
    the words' amplitudes with denominators held: 18 a block, squared by the camera.
    """

    kind, score_unit = "born", "probability"
    degree = 2 * 18**BLOCKS  # 648, paper Table 9

    def __init__(self, vocabulary_size: int, generator: torch.Generator):
        super().__init__()
        unit = (2 * MODES) ** -0.5
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, 2 * MODES, generator=generator) * unit)
        self.position = nn.Parameter(torch.randn(MAX_TOKENS, 2 * MODES, generator=generator) * unit)
        self.phase = nn.Parameter(torch.zeros(MAX_TOKENS))
        self.sentence = nn.Parameter(torch.randn(2, 2 * MODES, generator=generator) * unit)
        self.reference = nn.Parameter(torch.randn(2 * MODES, generator=generator) * unit)
        self.reference_gain = nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(BornBlock(generator) for _ in range(BLOCKS))
        self.camera = ComplexLinear(MODES, len(LABELS) * PIXELS, generator)

    def fields(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Word fields (B, L, C) without the reference; zero at padding."""
        return word_fields(self, ids, sentence)

    def enter(self, x: Tensor) -> Tensor:
        """The reference before the word fields: (B, L, C) to (B, 1 + L, C)."""
        return with_reference(self, x)

    def evolve(self, x: Tensor, held: Trace | None = None, trace: Trace | None = None, start: int = 0) -> Tensor:
        """Fields after all blocks, reference first: (B, L, C) to (B, 1 + L, C). `start` as in `scores`."""
        h = x if start else self.enter(x)
        for b, block in enumerate(self.blocks[start:], start):
            h = block(h, held.row_sums[b] if held else None, trace)
        return h

    def intensities(self, h: Tensor) -> Tensor:
        """Lens and camera: N_c (B, 3) from the fields of all slots (B, 1 + L, C)."""
        z = h.sum(1)
        image = F.linear(z, torch.cat([self.camera.real_rows(), self.camera.imag_rows()]))
        return image.view(-1, 2, len(LABELS), PIXELS).square().sum((1, 3))

    def scores(
        self, x: Tensor, mask: Tensor | None = None, held: Trace | None = None, trace: Trace | None = None, start: int = 0
    ) -> Tensor:
        """Class probabilities (B, 3): N_c over the camera total, or over the `held` total. `mask` is not needed.

        With `start` blocks already passed, `x` holds the fields after them, reference included.
        """
        n = self.intensities(self.evolve(x, held, trace, start))
        total = held.total if held else n.sum(-1)
        if trace is not None:
            trace.total = total
        return n / total.masked_fill(total == 0, 1.0).unsqueeze(-1)

    def forward(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Log-probabilities (B, 3)."""
        return log_shares(self.intensities(self.evolve(self.fields(ids, sentence))))


# ------------------------------------------------------------------------------------- real models
class RealBlock(nn.Module):
    """Attention (`square` or `softmax`) and feed-forward (`bilinear` or `gelu`) on 64 reals; both additive."""

    def __init__(self, attention: str, feed_forward: str, norm: bool, generator: torch.Generator):
        super().__init__()

        def matrix(outputs, inputs):
            return nn.Parameter(torch.randn(outputs, inputs, generator=generator) * inputs**-0.5)

        self.attention_kind, self.feed_forward_kind = attention, feed_forward
        self.qkv, self.output = matrix(3 * WIDTH, WIDTH), matrix(WIDTH, WIDTH)
        if feed_forward == "bilinear":
            self.first, self.last = matrix(2 * CHANNELS, WIDTH), matrix(WIDTH, CHANNELS)
        else:
            self.first, self.last = matrix(GELU_WIDTH, WIDTH), matrix(WIDTH, GELU_WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if norm else nn.Identity() for _ in range(2))

    def forward(self, h: Tensor, mask: Tensor, held: Tensor | None, trace: Trace | None, gates: Tensor | None) -> Tensor:
        B, L, C = h.shape
        q, k, v = F.linear(self.norms[0](h), self.qkv).view(B, L, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        products = q @ k.transpose(-1, -2)  # (B, H, L, L)
        if self.attention_kind == "square":
            attention, sums = normalise_rows(products, held)
        else:
            scaled = products * (C // HEADS) ** -0.5
            attention = scaled.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
            sums = attention.new_ones(B, HEADS, L)
        if gates is not None:
            attention = attention * gates[:, None, None, :]
        if trace is not None:
            trace.attention.append(attention)
            trace.row_sums.append(sums)
        h = h + F.linear((attention @ v).transpose(1, 2).reshape(B, L, C), self.output)
        u = F.linear(self.norms[1](h), self.first)
        if self.feed_forward_kind == "bilinear":
            a, b = u.chunk(2, -1)
            u = a * b
        else:
            u = F.gelu(u)
        return h + F.linear(u, self.last)


class RealTransformer(nn.Module):
    """The softmax transformer, Poly-sim-born and its ablations; scores are logits (paper Tables 3 and 8).

    `degree` is the degree of a logit in the words' amplitudes with denominators held (10 a block),
    or None where the logit is no polynomial.
    """

    score_unit = "logit"
    FORMS = {  # name: attention, feed-forward, LayerNorm
        "softmax": ("softmax", "gelu", True),
        "poly": ("square", "bilinear", False),
        "poly-gelu": ("square", "gelu", False),
        "poly-softmax": ("softmax", "bilinear", False),
        "poly-softmax-gelu": ("softmax", "gelu", False),
    }

    def __init__(self, kind: str, vocabulary_size: int, generator: torch.Generator):
        super().__init__()
        attention, feed_forward, norm = self.FORMS[kind]
        self.kind = kind
        self.degree = 10**BLOCKS if (attention, feed_forward, norm) == ("square", "bilinear", False) else None
        # with LayerNorm the usual unit variance per component: the first block must not drown the words it reads
        unit = 1.0 if norm else WIDTH**-0.5
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, WIDTH, generator=generator) * unit)
        self.position = nn.Parameter(torch.randn(MAX_TOKENS, WIDTH, generator=generator) * unit)
        self.sentence = nn.Parameter(torch.randn(2, WIDTH, generator=generator) * unit)
        self.blocks = nn.ModuleList(RealBlock(attention, feed_forward, norm, generator) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.head = nn.Parameter(torch.randn(len(LABELS), WIDTH, generator=generator) * WIDTH**-0.5)
        self.bias = nn.Parameter(torch.zeros(len(LABELS)))

    def fields(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Word fields (B, L, C); zero at padding."""
        x = F.embedding(ids, self.embedding) + self.position[: ids.shape[1]] + F.embedding(sentence, self.sentence)
        return x * (ids != PAD_ID).unsqueeze(-1)

    def scores(
        self,
        x: Tensor,
        mask: Tensor,
        held: Trace | None = None,
        trace: Trace | None = None,
        gates: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """Logits (B, 3). `mask` (B, L) is true at real slots; `gates` (B, L) scale attention weights by key.

        With `start` blocks already passed, `x` holds the fields after them.
        """
        h = x
        for b, block in enumerate(self.blocks[start:], start):
            h = block(h, mask, held.row_sums[b] if held else None, trace, gates)
        weight = mask.to(h.dtype) / mask.sum(-1, keepdim=True).clamp_min(1)
        pooled = (self.norm(h) * weight.unsqueeze(-1)).sum(1)
        return F.linear(pooled, self.head, self.bias)

    def forward(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Log-probabilities (B, 3)."""
        return self.scores(self.fields(ids, sentence), ids != PAD_ID).log_softmax(-1)


# ------------------------------------------------------------------------------------- coherent attention layer
@functools.cache
def pauli_products() -> Tensor:
    """The 15 products of two Pauli matrices other than 1 x 1, real and imaginary parts: (2, 15, 16)."""
    one = [
        torch.tensor(m, dtype=torch.complex64)
        for m in ([[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]])
    ]
    products = torch.stack([torch.kron(a, b).flatten() for a, b in itertools.product(one, one)][1:])
    return torch.stack([products.real, products.imag])


class Brickwall(nn.Module):
    """SU(4) gates on neighbouring qubits of seven, three a layer, alternately from the first and from the second qubit.

    A gate is exp(i sum_k angle_k P_k) over the 15 products of Pauli matrices: `angles` (18, 3, 15).
    The first qubit is the most significant digit of a mode's index.
    """

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.angles = nn.Parameter(torch.randn(LAYERS, QUBITS // 2, 15, generator=generator) * 0.3)

    def gates(self) -> Tensor:
        """The unitaries (18, 3, 4, 4) in the order in which they act."""
        re, im = (self.angles @ part for part in pauli_products().to(self.angles))
        return torch.linalg.matrix_exp(torch.complex(-im, re).view(*self.angles.shape[:2], 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Every gate on the columns of x (128, columns)."""
        layers = torch.einsum("lab,lcd,lef->lacebdf", *self.gates().unbind(1)).reshape(LAYERS, 64, 64)
        for k, layer in enumerate(layers.unbind()):
            x = layer @ x.reshape(64, -1) if k % 2 == 0 else layer @ x.reshape(2, 64, -1)
            x = x.reshape(OUTCOMES, -1)
        return x


class CoherentLayer(nn.Module):
    """One attention layer that is one circuit (paper Tables 4, 6 and 8, Figure 6); scores are the class probabilities.

    s = sum_j x_j, four heads m_h = M_h s, c_jh = <x_j|m_h>, z_h = sum_j c_jh x_j, y = U z of 128 outcomes,
    P_c = sum of |y_k|^2 over the outcomes of class c, over their total. Slot 0 holds the reference.
    `coherent` has dense M and U, `coherent-readout` a brickwall U, `coherent-brickwall` brickwalls for both:
    then M_h s = <h| U_M (|+>^2 x s). Mode h * 32 + k is mode k of head h.
    """

    score_unit = "probability"
    degree = 6  # z is cubic in the slots, the measurement squares it

    def __init__(self, kind: str, vocabulary_size: int, generator: torch.Generator):
        super().__init__()
        self.kind = kind
        unit = (2 * MODES) ** -0.5
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, 2 * MODES, generator=generator) * unit)
        self.position = nn.Parameter(torch.randn(MAX_TOKENS, 2 * MODES, generator=generator) * unit)
        self.phase = nn.Parameter(torch.zeros(MAX_TOKENS))
        self.sentence = nn.Parameter(torch.randn(2, 2 * MODES, generator=generator) * unit)
        self.reference = nn.Parameter(torch.randn(2 * MODES, generator=generator) * unit)
        self.reference_gain = nn.Parameter(torch.ones(()))
        brick_heads, brick_readout = kind == "coherent-brickwall", kind != "coherent"
        self.heads = Brickwall(generator) if brick_heads else ComplexLinear(MODES, OUTCOMES, generator)
        self.readout = Brickwall(generator) if brick_readout else ComplexLinear(OUTCOMES, OUTCOMES, generator)

    def fields(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Word fields (B, L, C) without the reference; zero at padding."""
        return word_fields(self, ids, sentence)

    def slots(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Complex slots (B, 1 + L, 32), the reference first."""
        return torch.complex(*with_reference(self, self.fields(ids, sentence)).chunk(2, -1))

    def head_map(self) -> Tensor:
        """M (128, 32): the rows of head h are M_h."""
        if isinstance(self.heads, ComplexLinear):
            return self.heads.matrix
        return self.heads(self._identity(MODES).repeat(COHERENT_HEADS, 1) * COHERENT_HEADS**-0.5)  # of |+>^2

    def readout_map(self) -> Tensor:
        """U (128, 128)."""
        if isinstance(self.readout, ComplexLinear):
            return self.readout.matrix
        return self.readout(self._identity(OUTCOMES))

    def _identity(self, size: int) -> Tensor:
        one = torch.eye(size, dtype=self.phase.dtype, device=self.phase.device)
        return torch.complex(one, torch.zeros_like(one))

    def amplitudes(self, x: Tensor) -> Tensor:
        """y (128, B) from complex slots (B, 1 + L, 32)."""
        m = (x.sum(1) @ self.head_map().T).view(-1, COHERENT_HEADS, MODES)
        z = (m @ x.mH) @ x  # c_jh = <x_j|m_h>, then its sum over the slots
        z = z.reshape(-1, OUTCOMES).T
        return self.readout(z) if isinstance(self.readout, Brickwall) else self.readout.matrix @ z

    def intensities(self, x: Tensor) -> Tensor:
        """N_c (B, 3) from complex slots."""
        y = torch.view_as_real(self.amplitudes(x)).square().sum(-1)
        return torch.stack([part.sum(0) for part in y.split(REGIONS)], -1)

    def scores(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class probabilities (B, 3) from word fields (B, L, C). `mask` is not needed."""
        n = self.intensities(torch.complex(*with_reference(self, x).chunk(2, -1)))
        total = n.sum(-1, keepdim=True)
        return n / total.masked_fill(total == 0, 1.0)

    def forward(self, ids: Tensor, sentence: Tensor) -> Tensor:
        """Log-probabilities (B, 3)."""
        return log_shares(self.intensities(self.slots(ids, sentence)))


Model = BornTransformer | RealTransformer | CoherentLayer


def build(kind: str, vocabulary_size: int, seed: int = 0) -> Model:
    """A model of one of `NAMES` or `COHERENT` with weights drawn from `seed`."""
    if kind not in NAMES + COHERENT:
        raise ValueError(f"model: expected one of {NAMES + COHERENT}, got {kind!r}")
    generator = torch.Generator().manual_seed(seed)
    if kind in COHERENT:
        return CoherentLayer(kind, vocabulary_size, generator)
    if kind == "born":
        return BornTransformer(vocabulary_size, generator)
    return RealTransformer(kind, vocabulary_size, generator)


def parameter_counts(model: Model) -> tuple[int, int]:
    """Number of real parameters in all, and outside the word embedding (98,645 for Born; paper Table 8)."""
    total = sum(p.numel() for p in model.parameters())
    return total, total - model.embedding.numel()
