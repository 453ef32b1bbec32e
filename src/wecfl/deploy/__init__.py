"""A Flower federation as processes, and the app that runs in them.

::

    new.py, app/     an app, ready to be filled in (`wecfl deploy new`)
    local.py         a whole federation on this machine (`up`, `run`, `status`, `down`)
    host.py          the same pieces for real hosts (`wecfl deploy host`)
    processes.py     programs that are kept running, and found again by the mark they carry
    certificates.py  the authority, the server's certificate, the nodes' keys
    proxy.py         nginx in front of the SuperLink
    templates/       nginx, Caddy and systemd

What the app runs – the clients and the server of a method – is `wecfl.flower`.
"""
