"""What things cost: a service with one operation."""

import dataclasses
import os

import iris
import iris.aio


@dataclasses.dataclass
class Offer:
    price: float
    seller: int  # the process that says so


class Prices(iris.aio.Service, cluster="prices"):
    def __init__(self) -> None:
        super().__init__()
        self.prices = {"tea": 3.5, "milk": 1.2}

    @iris.operation
    async def look_up(self, item: str, count: int = 1) -> Offer:
        """Return the price of so many of an item."""
        if item not in self.prices:
            raise iris.RemoteError("unknown_item", f"we do not sell {item}")
        return Offer(self.prices[item] * count, os.getpid())


prices = Prices()
