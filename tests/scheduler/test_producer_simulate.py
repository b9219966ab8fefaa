"""``resnap producer simulate``: the verdicts on a script, for people and for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.replay.test_producer_script import EXAMPLE

if TYPE_CHECKING:
    from tests.scheduler.conftest import Resnap


def test_each_step_of_the_example_has_its_verdict(command: Resnap) -> None:
    ran = command("producer", "simulate", EXAMPLE, "--output", "json")
    assert ran.code == 0
    assert ran.document["summary"] == {"accepted": 8, "duplicate": 1, "refused": 5}
    refused = next(step for step in ran.document["steps"] if step["line"] == 7)
    assert (refused["error"], refused["errorCode"]) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45)
    assert refused["detail"].endswith("sequence 17 does not follow on 9, the last in epoch 0")
    assert refused["entry"]["lastSequence"] == 9
    assert refused["producerDoes"] == "batch sent again as it is; producer goes on"
    fenced = next(step for step in ran.document["steps"] if step["line"] == 13)
    assert fenced["producerDoes"] == "batch failed; producer goes on, with its next epoch"


def test_what_may_come_first_depends_on_the_release(command: Resnap) -> None:
    plain = '{"do": "append", "producerId": 7, "sequence": 17}'
    verdicts = {}
    for release in ("2.5", "3.9", "4.0", "4.1", "4.4", "4.5"):
        for step in (plain, plain.replace("}", ', "transactional": true}')):
            script = command.directory / "script.jsonl"
            script.write_text(f'{{"do": "settings", "kafka": "{release}"}}\n{step}\n')
            ran = command("producer", "simulate", script, "--output", "json")
            verdicts[release] = (*verdicts.get(release, ()), ran.document["steps"][0]["verdict"])
    assert {release: both.count("refused") for release, both in verdicts.items()} == {
        "2.5": 0, "3.9": 0, "4.0": 0, "4.1": 1, "4.4": 1, "4.5": 2,
    }  # fmt: skip
    assert verdicts["4.4"] == ("accepted", "refused")


def test_a_stale_epoch_is_refused_before_its_transaction_is_found_unknown(command: Resnap) -> None:
    script = command.directory / "script.jsonl"
    steps = (
        '"append", "producerId": 1, "records": 3, "transactional": true', '"end", "producerId": 1, "epoch": 1',
        '"append", "producerId": 1, "epoch": 0, "sequence": 3, "transactional": true, "verified": false',
        '"append", "producerId": 1, "epoch": 1, "sequence": 0, "transactional": true, "verified": false',
    )  # fmt: skip
    for release in ("3.9", "4.0", "4.1", "4.4"):
        script.write_text("\n".join(f'{{"do": {step}}}' for step in (f'"settings", "kafka": "{release}"', *steps)))
        *_, stale, unknown = command("producer", "simulate", script, "--output", "json").document["steps"]
        assert (stale["error"], unknown["error"]) == ("INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE"), release


def test_people_see_a_table(command: Resnap) -> None:
    ran = command("producer", "simulate", EXAMPLE)
    assert ran.code == 0
    assert "answered with offsets 5 to 9, appended nothing" in ran.out
    assert "somebody removed the snapshots before an orderly start" in ran.out


def test_an_invalid_step_is_a_usage_error_after_the_verdicts_before_it(command: Resnap) -> None:
    script = command.directory / "script.jsonl"
    script.write_text('{"do": "append", "producerId": 1}\n{"do": "dance"}\n')
    ran = command("producer", "simulate", script)
    assert ran.code == 2
    assert "accepted" in ran.out
    assert 'script.jsonl, line 2: unknown step "dance"' in ran.err


def test_a_script_that_is_not_there_is_a_usage_error(command: Resnap) -> None:
    ran = command("producer", "simulate", command.directory / "none.jsonl")
    assert ran.code == 2
    assert "cannot be read" in ran.err


def test_a_note_may_hold_any_character(command: Resnap) -> None:
    script = command.directory / "script.jsonl"
    notes = ["\u2028", "\x85", "\ud800", "\x1b[2J"]
    steps = ({"do": "append", "producerId": 1, "note": note} for note in notes)
    lines = [json.dumps(step, ensure_ascii=step["note"] == "\ud800") for step in steps]
    script.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    ran = command("producer", "simulate", script, "--output", "json")
    assert ran.code == 0
    assert [step["note"] for step in ran.document["steps"]] == notes
    shown = command("producer", "simulate", script)
    assert shown.code == 0
    assert "\\x1b[2J" in shown.out
    assert "\x1b" not in shown.out


def test_a_directory_is_not_a_script(command: Resnap) -> None:
    ran = command("producer", "simulate", command.directory)
    assert ran.code == 2
    assert "cannot be read: Is a directory" in ran.err
