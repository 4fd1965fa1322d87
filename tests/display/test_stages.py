"""Symbolic shapes of the steps inside a node, found by tracing at a few sizes."""

import isomorph as iso
from isomorph.display.stages import UNREADABLE, Stage, stages


def found(text: str, **contracts) -> list[tuple[str, str, tuple[int | str, ...]]]:
    return [(s.path, s.operation, s.shape) for s in stages(iso.resolve(text, **contracts))]


def test_sums_and_multiples_of_symbols():
    text = 'a = input("B", "T", 4)\nb = input("B", "S", 4)\nconcat(a, b)\ncls_token()\nconcat(x2, x2, axis=0)'
    text = text.replace("cls_token()\n", "x2 = cls_token()\n")
    assert found(text)[0] == ("n0", "concatenate", ("B", "T+S", 4))
    assert found(text)[2] == ("n1", "concatenate", ("B", "T+S+1", 4))
    assert found(text)[3] == ("n2", "concatenate", ("2*B", "T+S+1", 4))


def test_a_bounded_symbol_stays_within_its_bound():
    text = 'input("B", "T", dtype="int64")\nembedding(9, 4)\npos_embed(2)\n'
    assert found(text)[0] == ("n0", "embedding", ("B", "T", 4))
    # T <= 1 leaves too few lengths to tell what depends on T.
    assert found(text.replace("pos_embed(2)", "pos_embed(1)"))[0][2][0] == "B"


def test_what_is_no_sum_is_not_guessed():
    class Flat(iso.Operator):
        """Merge batch and positions, and part them again."""

        def forward(self, m, F, x):
            B, T, D = x.shape
            return F.reshape(F.reshape(x, (B * T, D)), (B, T, D))

    iso.operator("flat_and_back", shape="x[B, T, D] -> out[B, T, D]", category="test")(Flat)
    try:
        assert found("flat_and_back()", input=("B", "T", 4)) == [
            ("n0", "reshape", (UNREADABLE, 4)), ("n0", "reshape", ("B", "T", 4)),
        ]  # fmt: skip
    finally:
        from isomorph.operators import catalogue

        catalogue.declared.pop("flat_and_back")


def test_only_sums_of_branches_are_residual():
    text = "pos_embed(9)\nh = encoder_block(2, 5)\nadd(h, h)"
    notes = {(s.path, s.operation): s.note for s in stages(iso.resolve(text, input=("B", 3, 4)))}
    assert notes["n1", "add"] == "residual"
    assert (notes["n0", "add"], notes["n2", "add"]) == ("", "")
    assert isinstance(stages(iso.resolve(text, input=("B", 3, 4)))[0], Stage)
