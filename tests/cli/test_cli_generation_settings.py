"""What a published model asks of a generation: noted, followed, told, and written again."""

from __future__ import annotations

import json

import pytest

import isomorph as iso

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def gpt2(tmp_path):
    """A directory of a small GPT-2 that asks for much, and the peer."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=40, n_embd=24, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None
    )
    peer = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(std=0.5)
    peer.generation_config.update(
        suppress_tokens=[3, 5], begin_suppress_tokens=[7], repetition_penalty=1.5, no_repeat_ngram_size=2,
        bad_words_ids=[[4, 9], [12]], eos_token_id=[33, 60], max_new_tokens=15, pad_token_id=0,
    )  # fmt: skip
    peer.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2", peer


def test_an_imported_model_follows_its_settings(isomorph, gpt2, tmp_path):
    """The command's ids are the peer's own, after import, and after export and import again."""
    directory, peer = gpt2
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    expected = peer.generate(prompt, attention_mask=torch.ones_like(prompt)).tolist()[0][5:]
    if expected[-1] in (33, 60):
        expected = expected[:-1]
    assert isomorph("import", directory, "-o", tmp_path / "model.safetensors", "-q") == (0, "", "")
    model = tmp_path / "model.safetensors"
    result = isomorph("generate", model, "--ids", "3,1,4,1,5", "--json")
    assert json.loads(result.out)[0]["new_ids"] == expected and result.err == ""
    # explicit ones win
    plain = isomorph(
        "generate", model, "--ids", "3,1,4,1,5", "-n", 6, "--suppress", "", "--begin-suppress", "", "--banned", "0 0",
        "--repetition-penalty", 1, "--no-repeat-ngram", 0, "--ignore-end",
    )  # fmt: skip
    greedy = peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, suppress_tokens=None, bad_words_ids=None,
        begin_suppress_tokens=None, repetition_penalty=1.0, no_repeat_ngram_size=0, eos_token_id=-1,
    ).tolist()[0][5:]  # fmt: skip
    assert plain.out.split() == [str(token) for token in greedy]
    assert isomorph("export", model, "-o", tmp_path / "back", "-q") == (0, "", "")
    written = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert written == json.loads((directory / "generation_config.json").read_text())
    for path in (directory, model, tmp_path / "back"):
        assert iso.generation_settings(path) == iso.GenerationSettings(
            suppress=[3, 5], begin_suppress=7, repetition_penalty=1.5, no_repeat_ngram=2, banned=[[4, 9], [12]],
            stop=[33, 60], max_new_tokens=15,
        )  # fmt: skip
    plan, weights = iso.import_checkpoint(directory)
    ids = iso.generate(
        iso.torch.build(plan, weights), [3, 1, 4, 1, 5], settings=iso.generation_settings(directory)
    )
    assert ids[5 : 5 + len(expected)].tolist() == expected
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back")
    assert again.generation_config.suppress_tokens == [3, 5]


def test_an_exports_own_settings_are_replaced_and_nobody_elses(isomorph, gpt2, tmp_path):
    plan, weights = iso.import_checkpoint(gpt2[0])
    out = tmp_path / "out"
    file = out / "generation_config.json"
    iso.export_checkpoint(out, plan, weights, notes={"generation_config": {"top_k": 5}})
    iso.export_checkpoint(out, plan, weights, notes={"generation_config": {"top_k": 6}})
    assert json.loads(file.read_text()) == {"top_k": 6}
    iso.export_checkpoint(out, plan, weights)
    assert not file.exists()
    iso.export_checkpoint(out, plan, weights, notes={"generation_config": {"top_k": 6}})
    file.write_text('{"top_k": 7}')  # somebody's
    with pytest.raises(iso.IsomorphError, match="files of a model that was not exported here"):
        iso.export_checkpoint(out, plan, weights)
    assert file.read_text() == '{"top_k": 7}'


def test_what_cannot_be_followed_is_told_when_it_generates(isomorph, gpt2, tmp_path):
    directory, _ = gpt2
    file = directory / "generation_config.json"
    file.write_text('{"num_beams": 4, "do_sample": false, "top_h": 0.3}')
    told = "the model asks for settings of generation that are not followed: num_beams 4, top_h 0.3\n"
    left = "left: settings of generation that are not followed: num_beams 4, top_h 0.3"
    assert isomorph("import", directory, "-o", tmp_path / "m.safetensors").err == left + "\n"
    result = isomorph("import", directory, "-o", tmp_path / "m.safetensors", "--json")
    assert json.loads(result.out)["notes"] == [left]
    for _ in range(2):  # each process begins anew
        result = isomorph("generate", tmp_path / "m.safetensors", "--ids", "1", "-n", 1, "--json")
        assert result.status == 0 and result.err == told
    quiet = isomorph("generate", tmp_path / "m.safetensors", "--ids", "1", "-n", 1, "--json", "-q")
    assert quiet.err == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is no JSON: "),
        ('{"temperature": NaN}', "is no JSON: "),
        ("[]", "holds list, expected an object"),
        ('{"suppress_tokens": [%s0]}' % ("1, " * 400_000), "has 1,200,024 bytes of settings; at most 1,048,576 are read"),
    ],
)  # fmt: skip
def test_a_damaged_file_of_settings(isomorph, gpt2, tmp_path, content, problem):
    directory, _ = gpt2
    (directory / "generation_config.json").write_text(content)
    result = isomorph("import", directory, "-o", tmp_path / "m.safetensors")
    assert result.status == 2 and result.err.startswith(
        f"E_CHECKPOINT: {directory / 'generation_config.json'} {problem}"
    )


# -- what is given to the command --------------------------------------------------------------------------


def test_every_setting_has_a_flag():
    import typer

    from isomorph.cli.main import app
    from isomorph.generation.settings import NAMES

    flags = {parameter.name for parameter in typer.main.get_command(app).commands["generate"].params}
    assert set(NAMES) <= flags


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    plan = iso.resolve('ids = input("B", "T", dtype="int64")\nembedding(50, 8)\nlinear(50)')
    iso.save(path, plan, iso.initial_weights(plan, seed=1))
    return path


def test_flags_are_the_settings(isomorph, model):
    built = iso.torch.build(*iso.load(model))
    result = isomorph(
        "generate", model, "--ids", "1,2", "--ids", "7", "-n", 9, "-t", 1, "--min-p", 0.01, "--repetition-penalty", 1.5,
        "--no-repeat-ngram", 2, "--suppress", "4,5", "--begin-suppress", "6", "--banned", "7,8", "--banned", "9",
        "--forced", "3:11,4:12", "--forced-end", 49, "--min-new-tokens", 2, "--seed", "5:1,8", "--json",
    )  # fmt: skip
    expected = iso.generate(
        built, [[1, 2], [7]], 9, temperature=1, min_p=0.01, repetition_penalty=1.5, no_repeat_ngram=2, suppress=[4, 5],
        begin_suppress=6, banned=[[7, 8], [9]], forced={3: 11, 4: 12}, forced_end=49, min_new_tokens=2, seed=[(5, 1), 8],
    )  # fmt: skip
    assert [entry["new_ids"] for entry in json.loads(result.out)] == expected[:, 2:].tolist()
    assert expected[:, -1].tolist() == [49, 49]


def test_a_prompt_is_seeded_as_the_second_of_two(isomorph, model):
    both = isomorph("generate", model, "--ids", "7", "--ids", "7", "-n", 5, "-t", 1, "--seed", 5)
    alone = isomorph("generate", model, "--ids", "7", "-n", 5, "-t", 1, "--seed", "5:1")
    assert both.out.splitlines()[1] == alone.out.strip() != both.out.splitlines()[0]


def test_lengths(isomorph, model):
    def count(*arguments):
        return len(isomorph("generate", model, "--ids", "7 8", *arguments).out.split())

    assert (count(), count("-n", 3), count("--max-length", 10), count("--max-length", 10, "-n", 3)) == (
        128,
        3,
        8,
        3,
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--seed", "x"], "E_ARGUMENT: --seed is written as 5, or as 5,7 for two prompts, got 'x'\n"
         "  5:1 seeds a prompt as the second one of --seed 5\n"),
        (["--seed", "1,2"], "E_ARGUMENT: seed has 2 rows' seeds, the prompts are 1\n"
         "  a number for all rows, or one for each; a pair stands in a list, as in seed=[(5, 1)]\n"),
        (["--suppress", "-1"], "E_ARGUMENT: --suppress are written as 1,2,3, got '-1'\n"),
        (["--banned", ""], "E_ARGUMENT: --banned are written as 1,2,3, got ''\n"),
        (["--forced", "1:2,"], "E_ARGUMENT: --forced is written as 1:50259,2:50359, got '1:2,'\n"
            "  POSITION:ID; the prompt's first id has position 0\n"),
        (["--forced", "1"], "E_ARGUMENT: --forced is written as 1:50259,2:50359, got '1'\n"
         "  POSITION:ID; the prompt's first id has position 0\n"),
        (["--forced", "1:50"], "E_ARGUMENT: forced holds id 50, the network scores 50\n  ids run from 0 to 49\n"),
        (["--min-p", "2"], "E_ARGUMENT: min_p must be a number from 0 to 1, got 2.0\n"),
        (["--repetition-penalty", "0"], "E_ARGUMENT: repetition_penalty must be a number above 0, got 0.0\n"),
        (["--no-repeat-ngram", "-2"], "E_ARGUMENT: no_repeat_ngram must be an int from 0, got -2\n"),
        (["--max-length", "1"], "E_ARGUMENT: max_length is 1, and the longest prompt has 1 ids already\n"
         "  give max_new_tokens, which does not count the prompt\n"),
    ],
)  # fmt: skip
def test_flags_out_of_range(isomorph, model, arguments, error):
    assert isomorph("generate", model, "--ids", "7", *arguments) == (2, "", error)
