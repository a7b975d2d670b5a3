//! File descriptors: epoll, inotify, Unix sockets, consoles, pseudo-terminals, port leases.

pub mod boot_timer;
pub mod console;
pub mod fd;
pub mod inotify;
pub mod output_end;
pub mod packet;
pub mod poll;
pub mod ports;
pub mod shared_words;
pub mod terminal_modes;
