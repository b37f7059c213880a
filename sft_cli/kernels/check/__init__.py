"""`sftune check-kernels`: every backend of every slot, called in a process of its package and compared."""
