"""With Iris: a worker is a member of a cluster, and is asked.  There is no broker; nothing waits where nobody works."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import iris
import iris.sync


class Thumbnails(iris.Service, cluster="thumbnails"):
    @iris.operation
    def shrink(self, picture: str, width: int = 100) -> str:
        return f"{picture} at {width} pixels"


if __name__ == "__main__":
    with iris.sync.open_node("worker") as worker, iris.sync.open_node("site") as site:
        limits = iris.Limits(concurrency=4, queue=1000)
        with worker.join("thumbnails", Thumbnails(), limits=limits), ThreadPoolExecutor() as threads:
            again = iris.RequestOptions(idempotent=True)  # asks again if a worker is lost
            thumbnails = Thumbnails.client(site, timeout=10, wait=5, options=again)
            pictures = [f"picture-{number}" for number in range(3)]
            for small in threads.map(partial(thumbnails.shrink, width=64), pictures):
                print(small)
