"""Sums over predictions, and a file that a killed process cannot spoil."""

import pytest

from isomorph.backends.trainer import Totals
from isomorph.training.metrics import MetricsFile, keep_records, read_records


def test_unequal_batches_weigh_by_their_predictions():
    # 11 predictions of loss 2 and 101 of loss 1: (22 + 101) / 112, and not (2 + 1) / 2.
    totals = Totals(22.0, 11, 11) + Totals(101.0, 0, 101)
    assert totals.mean_loss == 123 / 112
    assert totals.accuracy == 11 / 112


def test_no_predictions_mean_zero():
    assert (Totals().mean_loss, Totals().accuracy) == (0.0, 0.0)


def test_every_record_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.write({"step": 1, "loss": 0.5})
    assert read_records(path) == [{"step": 1, "loss": 0.5}]
    metrics.close()


def test_a_half_written_last_line_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert read_records(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("line", ['{"step": "x"}', '{"step": null}', '{"test_loss": [1]}', "[]", "7"])
def test_a_damaged_line_is_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2, "loss": 0.5}}\n')
    assert read_records(path) == [{"step": 1}, {"step": 2, "loss": 0.5}]
    keep_records(path, lambda record: record.get("step", 0) <= 1)
    assert path.read_text() == '{"step": 1}\n'


def test_keeping_records_drops_the_others_and_the_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    keep_records(path, lambda record: record["step"] <= 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    keep_records(tmp_path / "new.jsonl", lambda record: True)
    assert (tmp_path / "new.jsonl").read_text() == ""
