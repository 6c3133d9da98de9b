# Oracle: the seconds of each kind of work add up to those of the step, and the losses are those of
# a run that does not tell them.
import pytest

from running import base_flags, run_strata

WORKS = ["matrix products", "attention", "element-wise", "loss", "collectives", "update", "files",
         "data", "other"]


@pytest.mark.parametrize("settings", [{}, dict(use_peft=True, load_in_4bit=True, lora_r=3)],
                         ids=["whole", "qlora"])
def test_the_time_of_a_step_adds_up(inputs, tmp_path, settings):
    def run(name, **flags):
        return run_strata(base_flags(inputs.model("odd"), inputs.data("messages", train=28),
                                     tmp_path / name, max_steps=4, **settings, **flags), 2)

    silent, telling = run("silent"), run("telling", wall_clock_breakdown=True)
    assert telling.losses == silent.losses
    assert "a step: " not in silent.text
    rows = [row["step_seconds"] for row in telling.metrics if "loss" in row]
    assert len(rows) == telling.text.count(" s a step: ") == 4
    for row in rows:
        assert list(row) == ["total"] + WORKS
        assert sum(row[work] for work in WORKS) == pytest.approx(row["total"], rel=1e-3)
        assert row["files"] == 0
        assert all(row[work] > 0 for work in WORKS if work != "files")
    assert not any("step_seconds" in row for row in silent.metrics)
