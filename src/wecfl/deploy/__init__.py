"""A Flower federation as processes on one or several machines, and the app that runs in them.

::

    app_folder.py, app/  an app that the user fills in (`wecfl deploy new`), and its settings
    deployment.py        a whole federation on this machine (`up`, `run`, `status`, `down`)
    follow.py            what a run prints, and what it waits for
    enrol.py             clients on the operator's list (`wecfl deploy enrol`)
    host_files.py        the files of a federation on real hosts (`wecfl deploy host`)
    flower_programs.py   where Flower's programs are, and how they are called
    processes.py         keeps programs running, checks that they work, and finds them again
    certificates.py      the authority, the server's certificate, the nodes' keys
    proxy.py             nginx in front of the SuperLink
    templates/           nginx, Caddy, systemd, and the lock of what a host installs

Flower's servers are run by `wecfl_main.loopback_guard`, which lets only their own user reach them.
The app runs the clients and the server of a method; both are in `wecfl.flower`.
"""
