"""Limits and places that a test gives to the processes of a run."""

import ctypes
import resource


def limit_files(size, pids=None):
    """No file may grow beyond `size`, in this process or in others; None: any size."""
    soft = resource.RLIM_INFINITY if size is None else size
    for pid in pids or [0]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


def without_root_rights():
    """Root without CAP_DAC_OVERRIDE is held by a folder's mode, as everybody else is."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


def with_own_shared_memory(folder):
    """The words before a command whose /dev/shm is `folder`: what others leave there is not its own."""
    folder.mkdir()
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', str(folder)]
