"""Token ids equal those of `transformers` for conversations whose answers are kept.

`tests/oracle` makes the answers, and asks for thousands more (`make test-tokens`).
"""

import json
import shutil
from pathlib import Path

import pytest

from coordinator.tokens.tokenizer import Tokenizer
from tests.oracle.asking import by_product
from tests.oracle.expect import EXPECTED, MODEL, cases, templates

ANSWERS = json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_token_ids_are_those_that_the_oracle_gave(template: Path, tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    shutil.copyfile(template, tmp_path / "chat_template.jinja")
    tokenizer = Tokenizer.load(str(tmp_path))
    ours = [by_product(tokenizer, conversation)[:16] for conversation in cases(template)]
    assert ours == ANSWERS[template.stem]


def test_no_answer_is_missing() -> None:
    assert ANSWERS.keys() == {template.stem for template in templates()}
    assert sum(answer != "refused" for answers in ANSWERS.values() for answer in answers) > 400
