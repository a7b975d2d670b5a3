//! The store of torch's processes: its wire format, its meaning, its server and its client.

mod frames;
mod semantics;
mod served;
