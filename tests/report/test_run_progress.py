"""Tests of the terminal output of training runs and benchmarks."""

import pytest

from compshift.report.run_progress import print_run, run_listener
from compshift.report.terminal import counted, duration


def test_the_next_command_can_be_pasted(capsys):
    result = {"new": True, "validation": {}, "best_step": 3, "method": {}, "held_out": True, "model": "my run"}
    print_run(result, "my pics/list.csv", as_json=False)
    assert capsys.readouterr().out.endswith("test it with: compshift evaluate 'my run' 'my pics/list.csv'\n")


def test_a_resumed_run_is_announced_without_a_terminal(capsys):
    with run_listener(quiet=False) as listener:
        listener.started(0, 20)
        listener.started(5, 20)
    assert capsys.readouterr() == ("", "resuming after step 5 of 20\n")


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (720, "12 min"), (12_240, "3.4 h")])
def test_durations_use_seconds_minutes_or_hours(seconds, text):
    assert duration(seconds) == text


def test_nouns_agree_with_their_count():
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
