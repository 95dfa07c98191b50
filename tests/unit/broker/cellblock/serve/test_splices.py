"""Large texts take the places of their tokens."""

import json

from cellblock.serve.splices import TOKEN_START, Splices


def test_a_text_takes_the_place_of_its_token_and_of_its_quotes() -> None:
    splices = Splices()
    message = json.dumps({"x": splices.add(b'{"a":[1]}'), "y": [splices.add(b"2")]}).encode()
    assert json.loads(b"".join(splices.spliced(message))) == {"x": {"a": [1]}, "y": [2]}
    assert splices.spliced(message) == [message], "it is over"


def test_a_text_within_a_text_is_put_in_escaped() -> None:
    splices = Splices()
    gone: list[str] = []
    token = splices.add(rb"[\"\\u0000\"]", quote=b'\\"', on_gone=lambda: gone.append("gone"))
    message = json.dumps({"text": json.dumps({"result": token})}).encode()
    assert json.loads(json.loads(b"".join(splices.spliced(message)))["text"]) == {"result": ["\0"]}
    assert gone == ["gone"] and splices.spliced(message) == [message], "it is good for one use"


def test_what_only_looks_like_a_token_stays() -> None:
    splices = Splices()
    token = splices.add(b"1")
    other = json.dumps([TOKEN_START, TOKEN_START + "0" * 32, token[:-1], TOKEN_START * 3]).encode()
    assert b"".join(splices.spliced(other)) == other
    assert b"".join(splices.spliced(other[:-1] + b',"' + token.encode() + b'"]')) == other[:-1] + b",1]"
