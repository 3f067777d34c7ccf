"""``iris run --workers N`` and ``--reload``: one supervisor, and the worker processes that it starts.

workforce      what becomes of workers that serve, die, are replaced and leave: a machine without IO
supervisor     its shell: signals, and the processes
processes      one worker as its supervisor sees it
worker         this process as a worker: what it says to its supervisor, and that it ends when that is gone
places         ports of workers that share one command line
reloading      ``--reload``: one worker, started anew when a source file has changed
source_files   the files that are looked at for that

A supervisor and each worker have a pair of sockets.  The worker says there once that it serves, or why it does not; the
supervisor says nothing.  When either ends, the other one sees the end of the file.
"""
