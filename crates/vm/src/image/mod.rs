//! Makes images of machines.
