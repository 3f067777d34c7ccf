"""A Django site that asks a cluster, in one file.

Run it: pip install django, then: python examples/programs/django_site.py runserver --noreload
In another terminal, in the checkout: iris run examples.request:greeters; then open http://127.0.0.1:8000/hello/world
"""

import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, JsonResponse
from django.urls import path

import iris.sync

node = iris.sync.open_node("site").__enter__()  # one for each process, after all forks; closed at its end


def hello(_: HttpRequest, name: str) -> JsonResponse:
    return JsonResponse({"reply": node.request("greeters", name, wait=5)})


urlpatterns = [path("hello/<name>", hello)]

if __name__ == "__main__":
    settings.configure(ROOT_URLCONF=__name__, DEBUG=True, SECRET_KEY="of this example", ALLOWED_HOSTS=["127.0.0.1"])
    execute_from_command_line(sys.argv)
