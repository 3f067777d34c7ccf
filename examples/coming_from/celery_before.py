"""With Celery: a task is queued at a broker (here one in memory), and a worker takes it."""

from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("thumbnails", broker="memory://", backend="cache+memory://")


@app.task(autoretry_for=(OSError,), max_retries=3)
def shrink(picture: str, width: int = 100) -> str:
    return f"{picture} at {width} pixels"


if __name__ == "__main__":
    with start_worker(app, perform_ping_check=False, loglevel="ERROR"):  # in production: celery -A thumbnails worker
        results = [shrink.delay(f"picture-{number}", width=64) for number in range(3)]
        for result in results:
            print(result.get(timeout=10))
