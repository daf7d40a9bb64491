"""`kvlearn size`: what it prints, for people and for scripts."""

import json

import pytest
from typer.testing import CliRunner

from kvlearn import cli, sizing
from kvlearn.size_command import read_napkin


def run(*arguments):
    return CliRunner().invoke(cli.app, ["size", *arguments], env={"COLUMNS": "60"})


def numbers(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


FULL = "llama-3.1-70b --context 128k --batch 8 --cache fp8 --memory 141GB".split()


def test_the_table_says_all_that_was_asked():
    """A row that is missing, cut at the width of a terminal, or counted with other numbers than it shows."""
    result = run(*FULL)
    assert result.exit_code == 0
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]]
        for cells in (line.split("|") for line in result.output.splitlines())
        if len(cells) == 5
    }
    assert rows["cache of one token"] == [
        "160.00 KiB (163.84 kB)",
        "80 layers x 2 x 8 KV heads x 128 x 1 byte",
    ]
    assert rows["one sequence of 131,072 tokens"] == ["20.00 GiB (21.47 GB)", "x 131,072 tokens"]
    assert rows["batch of 8"][0] == "160.00 GiB (171.80 GB)"
    assert rows["weights in bf16"] == ["131.42 GiB (141.11 GB)", "70,553,706,496 parameters x 16 bits / 8"]
    assert rows["memory"][0] == "131.32 GiB (141.00 GB)"
    assert rows["does it fit"][0].startswith("no, 160.10 GiB")
    assert rows["most sequences of 131,072 tokens"] == ["0", "the weights alone do not fit"]
    assert rows["longest context at batch 8"] == ["0 tokens", "the weights alone do not fit"]
    assert rows["the cache outweighs the weights from batch 7"][1] == "weights / sequence = 6.57"
    assert "|---" in result.output  # Markdown: it can be pasted


def test_the_numbers_for_scripts():
    """Rounded numbers, or text, where a script needs bytes."""
    found = numbers(*FULL)
    assert found["bytes_per_token"] == 163_840 and found["sequence_bytes"] == 20 * 2**30
    assert found["batch_bytes"] == 160 * 2**30 and found["weight_bytes"] == 141_107_412_992
    assert found["total_bytes"] == found["batch_bytes"] + found["weight_bytes"]
    assert found["memory_bytes"] == 141 * 10**9 and found["fits"] is False
    assert (found["max_batch"], found["max_context"], found["crossover_batch"]) == (0, 0, 7)


def test_what_fits():
    """The most sequences or tokens, one too many or one too few."""
    found = numbers("llama-3.1-8b", "--context", "8k", "--batch", "4", "--gpu", "h100")
    free, row = 81559 * 2**20 - 16_060_522_496, 8192 * 131_072
    assert found["fits"] and found["max_batch"] == free // row
    assert found["max_context"] == free // (4 * 131_072)
    assert (
        "the model's own limit is 131,072" in run("llama-3.1-8b", "--context", "8k", "--gpu", "b200").output
    )


def test_the_model_s_own_context_is_the_default():
    assert numbers("llama-3-8b")["context"] == 8192
    result = run("deepseek-v3")
    assert result.exit_code == 2 and "How long a context? deepseek-v3 does not say" in result.output
    assert "the model's own limit is 8,192 tokens" in run("llama-3-8b", "--context", "9000").output


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("deepseek-v3 --context 8k", "61 layers x (512 latent + 64 rotary key) x 2 bytes"),
        ("gemma-3-27b", "x tokens: 1,024 in 52 layers, 131,072 in 10 layers"),
        ("llama-3.1-8b --cache int4 --group 64", "x 4.5 bits / 8 (4 and its scales)"),
        ("llama-3.1-8b --cache int4 --residual 128", "the last 128 or more in full"),
        ("llama-3.1-8b --cache q8_0", "x 8.5 bits / 8 (8 and its scales)"),
        ("llama-3.1-8b --block 16 --context 17", "x 17 tokens, in blocks of 16"),
        ("llama-3.1-70b --ranks 16", "80 layers x 2 x 1 KV head x 128 x 2 bytes"),
        ("llama-3.1-70b --ranks 2 --memory 80GiB", "70,553,706,496 parameters x 16 bits / 8 / 2 ranks"),
        ("mistral-7b-v0.1 --context 8k --gpu 4090", "no limit: every layer has a window"),
        ("llama-4-scout --context 8k", "say how many: --parameters 8B"),
        ("llama-4-scout --context 8k --parameters 109B", "109,000,000,000 parameters"),
    ],
)
def test_the_formula_has_the_numbers_in_it(arguments, said):
    """A formula that is not the one that was counted with."""
    result = run(*arguments.split())
    assert result.exit_code == 0 and said in result.output, result.output


def test_a_config_from_a_file(tmp_path):
    """A path taken for a name, and assumptions that are not shown."""
    config = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        result = run(str(path), "--context", "10", "--cache", "fp32")
        assert "3 layers x 2 x 4 KV heads x 8 x 4 bytes" in result.output
        assert "Note: num_key_value_heads is not in the config; taken as all 4 heads." in result.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("llama-3.1-80b", "no model called 'llama-3.1-80b'. Do you mean"),
        ("x" * 5000, "There is no model called 'xxx"),
        ("nowhere/config.json", "A path of a config.json, or of its folder, is read too."),
        ("llama-3-8b --memory 80", "memory='80' needs its unit"),
        ("llama-3-8b --memory 80GB --gpu h100", "Give --memory or --gpu, one of the two"),
        ("llama-3-8b --gpu h1000000", "no GPU called 'h1000000'"),
        ("llama-3-8b --context 0", "context='0'|context must be at least 1"),
        ("llama-3-8b --context lots", "context='lots' is not a size"),
        ("llama-3-8b --batch 0", "batch must be at least 1; got 0"),
        ("llama-3-8b --batch -1", "batch must be at least 1; got -1"),
        ("llama-3-8b --batch x", "Invalid value for '--batch'"),
        ("llama-3-8b --cache int5", "no cache type 'int5'"),
        ("llama-3-8b --weights q8_0", "no weight type 'q8_0'"),
        ("llama-3-8b --cache fp8 --group 32", "quant_group can be chosen for int8"),
        ("llama-3-8b --cache int4 --group 48", "128 channels are not whole groups of 48"),
        ("llama-3-8b --ranks 3", "32 query heads cannot be shared out evenly over 3 ranks"),
        ("llama-3-8b --block 0", "block must be at least 1"),
        ("llama-3-8b --parameters -8B", "parameters='-8B' is not a size"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, said):
    """A traceback at somebody who mistyped."""
    result = run(*arguments.split())
    assert result.exit_code == 2 and any(part in result.output for part in said.split("|")), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("model", [None, ["llama-3-8b"], 3, {}])
def test_what_is_no_name_of_a_model(model):
    """From Python: a question to the file system that it cannot answer; 3 is a file that is open."""
    with pytest.raises(ValueError, match="A model is a name, or the path of a config.json; got a"):
        read_napkin(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", sizing.models())
def test_every_known_model_has_a_table(name):
    """A row of the table that no sentence can be made of."""
    result = run(name, "--context", "5000", "--gpu", "h200", "--cache", "int4", "--weights", "int4")
    assert result.exit_code == 0, result.output
