from compshift.report.live import print_run


def test_the_next_command_can_be_pasted(capsys):
    result = {"new": True, "validation": {}, "best_step": 3, "method": {}, "held_out": True, "model": "my run"}
    print_run(result, "my pics/list.csv", as_json=False)
    assert capsys.readouterr().out.endswith("test it with: compshift evaluate 'my run' 'my pics/list.csv'\n")
