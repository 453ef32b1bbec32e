"""What runs at the server."""

from wecfl.flower import server_app

from PACKAGE.task import CLASSES, make_model

app = server_app(make_model, classes=CLASSES)
