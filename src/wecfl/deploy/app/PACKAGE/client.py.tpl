"""What runs at each client."""

from wecfl.flower import client_app

from PACKAGE.task import CLASSES, load_data, make_model

app = client_app(load_data, make_model, classes=CLASSES)
