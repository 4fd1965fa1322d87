"""What turns ids and images into sequences, and what tells positions apart."""

from __future__ import annotations

from math import gcd
from typing import Any, ClassVar

from isomorph.initializers import Normal, uniform_fan_in
from isomorph.operators.declare import (
    INFERRED,
    Conflict,
    Example,
    Operator,
    Parameter,
    argument,
    operator,
)
from isomorph.primitives import Primitives, Tensor


@operator("embedding", shape="ids[B, T]:int64 -> out[B, T, D]", category="embedding")
class Embedding(Operator):
    """A table of learned vectors, one for each integer id.

    ```
    out[b, t] = weight[ids[b, t]]
    ```

    `weight` is `[num_embeddings, D]` and starts from N(0, 1). An id below 0 or from `num_embeddings` up is
    `E_RUNTIME`. An omitted `dim` is worked out from what follows. A `linear` without a bias may share
    the table through `tie`, and then scores every id.
    """

    leaf: ClassVar = "embedding"

    num_embeddings: int = argument(positional=True, minimum=1, doc="Number of ids, which run from 0.")
    dim: int = argument(INFERRED, positional=True, minimum=1, size="D", doc="Features per vector, D.")

    examples: ClassVar = (
        Example("Eleven ids, eight features each.", "embedding(11, 8)", ("B", 5), input_dtype="int64"),
        Example(
            "The width comes from the output contract, the length is open.",
            "embedding(7)",
            ("B", "T"),
            ("B", "T", 4),
            input_dtype="int64",
        ),
        Example(
            "One table for reading and for scoring.",
            'ids = input("B", "T", dtype="int64")\n'
            'embedding(7, 4, name="tokens")\n'
            'linear(7, bias=False, tie={"weight": "tokens.weight"})',
        ),
    )

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"weight": Parameter((self.num_embeddings, D), Normal(), ("vocab", "embed"))}

    def forward(self, m: Any, F: Primitives, ids: Tensor) -> Tensor:
        return F.embedding(ids, m.weight)


@operator("pos_embed", shape="x[B, T, D] -> out[B, T, D]", category="embedding")
class PositionEmbedding(Operator):
    """Add a learned vector to every position.

    ```
    out[b, t] = x[b, t] + weight[t]
    ```

    `weight` is `[max_len, D]` and starts from N(0, 0.02). Every example gets the same vectors. A shorter
    sequence uses the first T rows; a longer one is an error, `E_CONSTRAINT` where T is known and
    `E_RUNTIME` where it is a symbol.
    """

    bounds: ClassVar = {"T": "max_len"}

    max_len: int = argument(positional=True, minimum=1, doc="The greatest length; rows of the table.")

    examples: ClassVar = (
        Example("Positions of a sequence of six.", "pos_embed(6)", ("B", 6, 4)),
        Example("Any length up to nine.", "pos_embed(9)", ("B", "T", 4)),
    )

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"weight": Parameter((self.max_len, D), Normal(std=0.02), (None, "embed"))}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return x + F.positions(m.weight, x.shape[1])  # (B, T, D) + (T, D)


ORDERS = ("sin_cos", "cos_sin", "sin_then_cos")


@operator("sinusoidal_pos_embed", shape="x[B, T, D] -> out[B, T, D]", category="embedding")
class SinusoidalPositionEmbedding(Operator):
    """Add fixed sines and cosines of the position (Vaswani et al., 2017, section 3.5).

    Pair i of the D/2 pairs turns at `max_period ** (-2i/D)` radians per position, so that wavelengths
    run from 2 pi up towards 2 pi times `max_period`:

    ```
    angle[t, i]       = t * max_period ** (-2i / D)        # t from 0, i from 0 to D/2 - 1
    out[b, t, 2i]     = x[b, t, 2i]     + sin(angle[t, i])
    out[b, t, 2i + 1] = x[b, t, 2i + 1] + cos(angle[t, i])
    ```

    `order` says where sines and cosines go; weights trained under one do not fit another:

    | `order` | Features | Used by |
    | --- | --- | --- |
    | `sin_cos` | sin 0, cos 0, sin 1, cos 1, ... | Vaswani et al. |
    | `cos_sin` | cos 0, sin 0, cos 1, sin 1, ... | the same pairs, swapped |
    | `sin_then_cos` | all sines, then all cosines | MAE, for each axis of an image |

    Tensor2Tensor and Whisper place all sines first too, but space the frequencies by
    `max_period ** (-i / (D/2 - 1))`, which is another table. Angles are computed in float64 and rounded
    once. D must be even, T may be anything, and nothing is learned.
    """

    max_period: float = argument(10000.0, minimum=1, doc="Base of the frequencies.")
    order: str = argument("sin_cos", choices=ORDERS, doc="Which features are sines and which cosines.")

    examples: ClassVar = (
        Example("Positions of a sequence of any length.", "sinusoidal_pos_embed()", ("B", "T", 8)),
        Example(
            "Sines in the first half, a shorter period.",
            'sinusoidal_pos_embed(max_period=100.0, order="sin_then_cos")',
            ("B", 5, 6),
        ),
    )

    def check(self, D: int) -> None:
        if D % 2:
            raise Conflict(
                f"sinusoidal_pos_embed needs an even width, got D={D}",
                sizes=("D",),
                hints=("features come in pairs of a sine and a cosine",),
            )

    def multiples(self) -> dict[str, int]:
        return {"D": 2}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        T, D = x.shape[1], self.sizes["D"]
        frequencies = tuple(self.max_period ** (-2.0 * i / D) for i in range(D // 2))
        cos, sin = F.cos_sin(T, frequencies, x)  # (T, D/2) each
        if self.order == "sin_then_cos":
            return x + F.concatenate((sin, cos), -1)
        pairs = (sin, cos) if self.order == "sin_cos" else (cos, sin)
        columns = tuple(F.reshape(half, (*half.shape, 1)) for half in pairs)
        return x + F.reshape(F.concatenate(columns, -1), (*cos.shape[:-1], D))


@operator("cls_token", shape="x[B, T, D] -> out[B, T+1, D]", category="embedding")
class ClassToken(Operator):
    """Put one learned vector in front of every sequence.

    ```
    out[b, 0]     = token
    out[b, t + 1] = x[b, t]
    ```

    `token` is `[1, 1, D]` and starts from N(0, 0.02), as in ViT. A later `pool_tokens("first")` reads
    what the network wrote there.
    """

    examples: ClassVar = (
        Example("Four positions become five.", "cls_token()", ("B", 4, 8)),
        Example(
            "The result of any length is read at the token.",
            'cls_token()\npool_tokens("first")',
            ("B", "T", 6),
        ),
    )

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"token": Parameter((1, 1, D), Normal(std=0.02), (None, None, "embed"))}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        token = F.expand(m.token, (x.shape[0], 1, self.sizes["D"]))  # (B, 1, D)
        return F.concatenate((token, x), 1)  # (B, T+1, D)


@operator("register_tokens", shape="x[B, T, D] -> out[B, T+count, D]", category="embedding")
class RegisterTokens(Operator):
    """Put several learned vectors in front of every sequence (Darcet et al., 2023).

    ```
    out[b, t]         = tokens[0, t]       # t from 0 to count - 1
    out[b, count + t] = x[b, t]
    ```

    `tokens` is `[1, count, D]` and starts from N(0, 0.02). Registers are room to compute in that nobody reads
    afterwards. Vectors that are added by `pos_embed` before this call do not reach them.
    """

    count: int = argument(positional=True, minimum=1, doc="Number of vectors.")

    examples: ClassVar = (
        Example("Two positions become five.", "register_tokens(3)", ("B", 2, 8)),
        Example(
            "Registers stand between the class token and the patches, without positions.",
            "pos_embed(4)\nregister_tokens(2)\ncls_token()",
            ("B", 4, 6),
        ),
    )

    def parameters(self, D: int) -> dict[str, Parameter]:
        return {"tokens": Parameter((1, self.count, D), Normal(std=0.02), (None, None, "embed"))}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        tokens = F.expand(m.tokens, (x.shape[0], self.count, self.sizes["D"]))  # (B, count, D)
        return F.concatenate((tokens, x), 1)  # (B, T+count, D)


@operator("conv2d", shape="x[B, C, H, W] -> out[B, D, H/s, W/s]", category="convolution", register=False)
class Conv2d(Operator):
    """Cross-correlation of an image with square kernels, without padding.

    `weight` is `[D, C, kernel_size, kernel_size]` and `bias`, where there is one, is `[D]`; both start
    uniform in ±1/sqrt(C * kernel_size ** 2).
    """

    leaf: ClassVar = "conv2d"

    kernel_size: int = argument(positional=True, minimum=1, doc="Height and width of a kernel.")
    stride: int = argument(1, minimum=1, doc="Pixels from one place of a kernel to the next.")
    bias: bool = argument(True, doc="Add a learned vector after the product.")

    def parameters(self, C: int, D: int) -> dict[str, Parameter]:
        k = self.kernel_size
        initial = uniform_fan_in(C * k * k)
        parameters = {"weight": Parameter((D, C, k, k), initial, ("embed", None, None, None))}
        if self.bias:
            parameters["bias"] = Parameter((D,), initial, ("embed",))
        return parameters

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        return F.conv2d(x, m.weight, m.bias if self.bias else None, stride=self.stride)


@operator("patch_embed", shape="x[B, C, H, W] -> out[B, (H/p)*(W/p), D]", category="embedding")
class PatchEmbed(Operator):
    """Cut an image into square patches and map each to a vector (Dosovitskiy et al., 2020).

    The image `[B, C, H, W]` is tiled by patches of p by p pixels without overlap, p being `patch_size`;
    both H and W must be multiples of p. With (r, s) the patch's row and column:

    ```
    out[b, r * (W/p) + s, d] = proj.bias[d]
        + sum over c, i, j of proj.weight[d, c, i, j] * x[b, c, r * p + i, s * p + j]
    ```

    So patches follow each other row by row, from the top left. The child `proj` is a convolution whose
    stride is its kernel size: `proj.weight` is `[D, C, p, p]`, `proj.bias` is `[D]`, both uniform in
    ±1/sqrt(C * p * p) at first. Class token and positions are the business of `cls_token` and `pos_embed`.
    """

    dim: int = argument(INFERRED, positional=True, minimum=1, size="D", doc="Features per patch, D.")
    patch_size: int = argument(
        positional=True, minimum=1, size="p", doc="Height and width of a patch in pixels."
    )
    in_channels: int = argument(INFERRED, minimum=1, size="C", doc="Channels of the image, C.")
    bias: bool = argument(True, doc="Add a learned vector to every patch.")

    examples: ClassVar = (
        Example("Two rows of three patches from a grey image.", "patch_embed(8, 2)", ("B", 1, 4, 6)),
        Example(
            "The width comes from the output contract.",
            "patch_embed(patch_size=2)",
            ("B", 3, 4, 4),
            ("B", 4, 5),
        ),
        Example(
            "The stem of a small vision transformer.",
            "patch_embed(6, 4)\ncls_token()\npos_embed(5)",
            ("B", 3, 8, 8),
        ),
        Example("No bias, as in CLIP.", "patch_embed(5, 2, bias=False)", ("B", 3, 4, 4)),
    )

    def relate(self, solver: Any, sizes: Any, x: Any) -> Any:
        B, _, H, W = x
        for name, size in (("H", H), ("W", W)):
            if type(size) is int and size % self.patch_size:
                raise self.refuse(name, size, H, W)
        rows, columns = (solver.quotient(size, self.patch_size) for size in (H, W))
        return ((B, solver.product((rows, columns)), sizes["D"]),)

    def refuse(self, name: str, size: int, H: Any, W: Any) -> Conflict:
        """What to say when patches do not tile the image."""
        hints: tuple[str, ...] = ()
        if type(H) is int and type(W) is int:
            common = gcd(H, W)
            divisors = [n for n in range(1, min(common, 1 << 12) + 1) if common % n == 0]
            hints = (f"patch sizes that divide {H} and {W}: {', '.join(map(str, divisors[:16]))}",)
        side = {"H": "height", "W": "width"}[name]
        return Conflict(
            f"patch_size={self.patch_size} does not divide the image's {side} {name}={size}",
            argument="patch_size",
            sizes=(name,),
            hints=hints,
        )

    def children(self, C: int, D: int) -> dict[str, Operator]:
        p = self.patch_size
        return {"proj": Conv2d.of(C=C, D=D, kernel_size=p, stride=p, bias=self.bias)}

    def forward(self, m: Any, F: Primitives, x: Tensor) -> Tensor:
        y = m.proj(x)  # (B, D, H/p, W/p)
        B, D, rows, columns = y.shape
        return F.reshape(F.permute(y, (0, 2, 3, 1)), (B, rows * columns, D))  # (B, (H/p)*(W/p), D)
