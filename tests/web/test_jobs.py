"""Jobs: what they give, how they end, and that they end when they are told to."""

import base64
import gc
import io
import json
import threading
import time
import weakref
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException

from mjp.core.errors import ConfigError
from mjp.data.decoding import View
from mjp.data.embedded import photograph
from mjp.models.subject import fingerprint
from mjp.privacy.audit import audit
from mjp.privacy.public import PublicModel
from mjp.web.config import ServeOptions
from mjp.web.jobs import Job, Jobs
from mjp.web.models import Models, small_model
from mjp.web.schema import JobRequest
from tests.web.running import encoded, picture

SEARCH = {"attack": "invert", "steps": 4000}
"""An attack that does not end by itself within a test."""


def png(client, path: str) -> np.ndarray:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content)))


@pytest.mark.parametrize(
    ("defence", "attack"), [("none", "patch_solve"), ("mjp=0.09", "adaptive_solve")]
)
def test_a_job_gives_what_the_library_gives(server, defence, attack):
    """The same picture, seed and model through `mjp.privacy`, without the server."""
    job = server.ended(server.start(defence=defence, attack=attack, seed=5)["id"])
    public = PublicModel.of(small_model())
    image = torch.as_tensor(View(public.size).transform()(photograph("astronaut")))[None] / 255
    report = audit(public, image, attacks=(attack,), defences=(defence,), seed=5, show=1)
    summary, _, outcome = report.records
    result = job["result"]
    answer = server.client.get(result["download"])
    assert answer.headers["content-disposition"] == f'attachment; filename="mjp-{attack}.zip"'
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    names = ["picture.png", "masked.png", "shuffled.png", "recovered.png", "record.json"]
    assert archive.namelist() == names
    record = json.loads(archive.read("record.json"))
    assert record["values"]["verdict"] == result["verdict"]
    assert record["conditions"]["defence"] == defence
    assert record["conditions"]["weights"] == fingerprint(public.model)
    assert not any("identified" in name for name in record["values"])
    assert result["psnr"] == pytest.approx(outcome.values["psnr"], abs=0.5)
    assert result["ssim"] == pytest.approx(outcome.values["ssim"], abs=0.01)
    assert result["masked_patches"] == outcome.values["masked_patches"]
    guesses = (summary.values[f"baseline_{guess}_psnr"] for guess in ("mean", "colour"))
    assert result["psnr_guess"] == pytest.approx(max(guesses))
    found = png(server.client, result["pictures"]["recovered"]).astype(int)
    expected = (report.images[defence, attack, 0].permute(1, 2, 0) * 255).round().numpy()
    assert np.abs(found - expected).mean() < 1
    view = (report.images[defence, "client", 0].permute(1, 2, 0) * 255).round().numpy()
    assert np.abs(png(server.client, result["pictures"]["shuffled"]) - view).max() == 0


def test_the_preview_is_the_jigsaw_of_the_job(server):
    wanted = {"picture": "coffee", "defence": "mjp=0.27", "seed": 7}
    seen = server.client.post("/api/preview", json=wanted).json()
    assert len(seen["masked"]) == round(0.27 * 144)
    assert sorted(seen["source"]) == list(range(144))
    moved = {place for place, origin in enumerate(seen["source"]) if place != origin}
    assert moved <= set(seen["masked"])
    job = server.ended(server.start(**wanted)["id"])
    shown = base64.b64decode(seen["pictures"]["shuffled"].partition(",")[2])
    answer = server.client.get(job["result"]["pictures"]["shuffled"])
    one, other = (np.asarray(Image.open(io.BytesIO(part))) for part in (shown, answer.content))
    assert np.array_equal(one, other)


def test_an_attack_that_does_not_apply_says_why_and_shows_nothing(server):
    job = server.ended(server.start(defence="unshared")["id"])
    assert job["state"] == "done"
    assert job["result"]["level"] == "does not apply"
    assert "not shared" in job["result"]["reason"]
    assert job["result"]["psnr"] is None
    assert "recovered" not in job["result"]["pictures"]
    missing = server.client.get(f"/api/jobs/{job['id']}/pictures/recovered.png")
    assert missing.status_code == 404


def test_progress_is_told_while_it_runs(server):
    job = server.start(defence="mjp=0.09", attack="adaptive_solve")
    told = []
    with server.client.stream("GET", f"/api/jobs/{job['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
    assert told[-1]["state"] == "done"
    assert told[-1]["result"]["psnr"] > 15
    progress = [one["progress"] for one in told]
    assert progress == sorted(progress)
    assert any(0 < one < 1 for one in progress)


def test_a_full_queue_refuses_until_what_waits_or_runs_is_cancelled(server):
    first = server.start(**SEARCH)
    path = f"/api/jobs/{first['id']}"
    while server.client.get(path).json()["progress"] == 0:
        time.sleep(0.02)
    waiting = [server.start(**SEARCH) for _ in range(2)]
    assert [job["ahead"] for job in waiting] == [0, 1]
    refused = server.client.post("/api/jobs", json={"picture": "cat"})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "5"
    assert "2 attacks are waiting already" in refused.json()["error"]
    for job in (*waiting, first):
        assert server.client.delete(f"/api/jobs/{job['id']}").json()["state"] == "cancelled"
    assert server.ended(server.start(defence="unshared")["id"])["state"] == "done"
    again = server.client.get(path).json()
    assert (again["state"], again["result"]) == ("cancelled", None)
    server.client.delete(path)
    assert server.client.get(path).status_code == 404


def test_a_job_goes_on_when_its_picture_is_removed_and_shows_no_other(server):
    names = [server.upload(encoded(picture(seed, (96, 96)))).json()["id"] for seed in (11, 12)]
    jobs = [server.start(picture=name)["id"] for name in names]
    for name in names:
        server.client.delete(f"/api/pictures/{name}")
    for seed, job in zip((11, 12), jobs, strict=True):
        found = png(server.client, server.ended(job)["result"]["pictures"]["picture"])
        assert np.abs(found.astype(int) - np.asarray(picture(seed, (96, 96)), int)).max() <= 1


@pytest.mark.parametrize("ratio", ["0.01", "1"])
def test_every_ratio_and_a_picture_of_one_colour_give_a_result(server, ratio):
    name = server.upload(encoded(Image.new("RGB", (96, 96), "teal"))).json()["id"]
    job = server.start(picture=name, defence=f"mjp={ratio}", attack="adaptive_solve")
    ended = server.ended(job["id"])
    assert ended["state"] == "done", ended["message"]


@contextmanager
def jobs_of(attack, clock=time.monotonic, **limits) -> Iterator[Jobs]:
    """Jobs of one thread, which `attack` gets the picture, what is wanted, and `tell`."""
    threads = torch.get_num_threads()
    jobs = Jobs(ServeOptions(jobs=1, **limits), attack, clock=clock)
    jobs.start()
    yield jobs
    assert jobs.close(2)
    torch.set_num_threads(threads)


def add(jobs: Jobs) -> Job:
    return jobs.add(picture(), JobRequest(picture="upload"))


def until(jobs: Jobs, job: Job, state: str) -> Job:
    for _ in range(500):
        if jobs.answer(job).state == state:
            return job
        time.sleep(0.01)
    raise AssertionError(f"never {state}")


def test_a_job_that_takes_too_long_is_stopped_and_its_thread_goes_on():
    now, ended = 0.0, threading.Event()

    def slow(_, __, tell):
        try:
            while True:
                tell(0.001)
                time.sleep(0.005)
        finally:
            ended.set()

    with jobs_of(slow, lambda: now, seconds=30.0) as jobs:
        job = until(jobs, add(jobs), "running")
        now = 31.0
        assert "stopped after 30 seconds" in until(jobs, job, "timed out").message
        assert ended.wait(2)
        until(jobs, add(jobs), "running")


def test_one_failure_does_not_keep_the_next_from_running(capsys):
    errors = iter([ValueError("a secret path"), ConfigError("too few patches"), MemoryError()])

    def failing(*_):
        raise next(errors)

    with jobs_of(failing) as jobs:
        told = [until(jobs, add(jobs), "failed").message for _ in range(3)]
    assert told[0] == "Something went wrong in the server; this is not your fault."
    assert told[1] == "Too few patches."
    assert "not enough memory" in told[2]
    assert "ValueError: a secret path" in capsys.readouterr().err


def test_results_are_forgotten_but_running_jobs_are_not():
    now, go = 0.0, threading.Event()

    def waits(*_):
        go.wait(10)
        raise ConfigError("done")

    with jobs_of(waits, lambda: now, kept=2, minutes=1, waiting=5) as jobs:
        running = until(jobs, add(jobs), "running")
        now = 59.0
        others = [add(jobs) for _ in range(3)]
        for other in others:
            jobs.cancel(other)
        with pytest.raises(HTTPException, match="forgotten"):
            jobs.get(others[0].id)  # The others took its place.
        assert jobs.get(others[1].id) is others[1]
        now = 130.0
        assert jobs.get(running.id) is running
        go.set()
        until(jobs, running, "failed")
        now = 300.0
        for job in (running, *others):
            with pytest.raises(HTTPException, match="forgotten"):
                jobs.get(job.id)
        assert len(jobs.ended) == 0
    with pytest.raises(HTTPException, match="being stopped"):
        add(jobs)


def test_cancelled_jobs_hold_nobodys_picture_while_another_runs():
    go = threading.Event()
    with jobs_of(lambda *_: go.wait(10), waiting=2) as jobs:
        until(jobs, add(jobs), "running")
        pictures = [picture(seed) for seed in range(20)]
        for image in pictures:
            job = jobs.add(image, JobRequest(picture="upload"))
            jobs.cancel(job)
            assert job.state == "cancelled"
            jobs.cancel(job)
        left = [weakref.ref(image) for image in pictures]
        del image, job, pictures
        gc.collect()
        assert not any(reference() for reference in left)
        go.set()


@pytest.mark.parametrize("key", ["trained-mjp", "trained-plain"])
def test_the_trained_models_are_attacked_where_closed_forms_are_determined(server, key):
    public = server.holds.models[key]
    assert public.grid.num_patches < public.surface.width
    result = server.ended(server.start(model=key)["id"])["result"]
    assert result["level"] == "recovered"
    defended = server.ended(server.start(model=key, defence="mjp=0.09")["id"])["result"]
    assert defended["psnr"] < result["psnr"]


def test_models_are_copied_for_each_thread_and_unknown_ones_refused():
    models = Models((), torch.device("cpu"))
    with ThreadPoolExecutor() as thread:
        other = thread.submit(models.of_thread, "small").result()
    own = models.of_thread("small")
    assert models.of_thread("small") is own
    assert len({own.model, other.model, models["small"].model}) == 3
    for mine, theirs in zip(own.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(HTTPException, match="no such model"):
        models["../../etc/passwd"]
