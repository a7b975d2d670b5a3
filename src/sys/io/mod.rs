//! File descriptors: epoll, inotify, Unix sockets, consoles, port leases.

pub mod console;
pub mod fd;
pub mod inotify;
pub mod packet;
pub mod poll;
pub mod ports;
