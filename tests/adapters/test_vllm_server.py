"""The plugin in vLLM's own processes: an engine core of its own, and an HTTP server."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: nox -s vllm")

import vllm_models as models

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import vllm_models as models
if __name__ == "__main__":
    llm = models.engine({target!r}, models.drafted_by({draft!r}))
    print("ANSWERS", models.greedy(llm, {prompts!r}))
"""
PROMPTS = [[1, 5, 9, 13], [1, 7], [1, 30, 31]]


def environment(**changes):
    return {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO",
            **changes}


def run(folders, tmp_path, **changes):
    script = tmp_path / "script.py"
    tests = os.path.dirname(models.__file__)  # noqa: PTH120
    script.write_text(SCRIPT.format(tests=tests, target=str(folders[0]), draft=str(folders[1]),
                                    prompts=PROMPTS))
    done = subprocess.run([sys.executable, script], env=environment(**changes), timeout=240,
                          capture_output=True, text=True, check=False)
    answers = re.search(r"ANSWERS (.*)", done.stdout)
    return done, answers and json.loads(answers[1])


def test_the_plugin_is_loaded_in_the_engines_own_process(folders, tmp_path):
    without, plain = run(folders, tmp_path)
    assert plain, without.stderr[-2000:]
    assert "decides the draft length" not in without.stdout + without.stderr
    done, answers = run(folders, tmp_path, SVIP_POLICY="svip(threshold=0.3)")
    assert answers == plain, done.stderr[-2000:]
    assert re.search(r"svip\(threshold=0.3, .* decides the draft length", done.stdout + done.stderr)


def test_a_wrong_policy_in_the_environment_stops_the_start(folders, tmp_path):
    done, answers = run(folders, tmp_path, SVIP_POLICY="svip(threshold=-1)")
    assert done.returncode and not answers
    assert "threshold" in done.stderr


@pytest.fixture
def server(folders, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folders[0]),
         "--served-model-name", "tiny", "--speculative-config",
         json.dumps(models.drafted_by(folders[1])), "--no-async-scheduling", "--enforce-eager",
         "--dtype", "float32", "--max-model-len", str(models.LONGEST), "--skip-tokenizer-init",
         "--max-num-seqs", "4", "--port", str(port), "--host", "127.0.0.1",
         "--no-enable-prefix-caching"],
        env=environment(SVIP_POLICY="svip(threshold=0.45)", PROMETHEUS_MULTIPROC_DIR=str(metrics)),
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        for _ in range(180):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(1)
        else:
            pytest.fail((tmp_path / "log").read_text()[-3000:])
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def ask(server, prompt, tokens):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "detokenize": False}
    request = urllib.request.Request(f"{server}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_http_server_answers_concurrent_clients(server, folders):
    """A minute of clients: no answer is lost, and none is another's."""
    prompts = [[1, 3 + n, 90 - n, *range(5, 5 + n % 7)] for n in range(24)]
    lengths = [5 + 3 * (n % 9) for n in range(24)]
    expected = [ask(server, p, n) for p, n in zip(prompts, lengths, strict=True)]
    assert [len(tokens) for tokens in expected] == lengths
    assert len({tuple(tokens) for tokens in expected}) > 12
    until, wrong, count, lock = time.monotonic() + 60, [], [0], threading.Lock()

    def client(first):
        n = first
        while time.monotonic() < until:
            n = (n + 5) % len(prompts)
            try:
                found = ask(server, prompts[n], lengths[n])
            except OSError as error:
                found = error
            with lock:
                count[0] += 1
                if found != expected[n]:
                    wrong.append((n, found))

    clients = [threading.Thread(target=client, args=(first,)) for first in range(6)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert not wrong and count[0] > 30, (wrong[:3], count)
    text = urllib.request.urlopen(f"{server}/metrics", timeout=10).read().decode()
    assert re.search(r'svip_draft_tokens_total\{.*svip\(threshold=0.45.*\} [1-9]', text)
